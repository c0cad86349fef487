"""Real processes, real ``kill -9``, real servers."""
