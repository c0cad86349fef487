"""The first program of a tmux window: becomes the worker, with its supervisor's environment.

Started as ``python -I -S roles/window.py ENV_FILE COMMAND...``. It removes ENV_FILE, which
may hold credentials, and keeps of the window's own environment what says which window it is.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_OF_THE_WINDOW = ("TERM", "TMUX", "TMUX_PANE")


def main(env_file: Path, argv: list[str]) -> None:
    """Execute ``argv`` in the place of this process."""
    env = json.loads(env_file.read_bytes())
    env_file.unlink()
    env.update({name: os.environ[name] for name in _OF_THE_WINDOW if name in os.environ})
    os.execvpe(argv[0], argv, env)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
