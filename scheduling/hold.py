"""What keeps a job from starting although slots may be free: the one word for it."""

from __future__ import annotations

from typing import NamedTuple


class Hold(NamedTuple):
    """A full limit: whose it is, and the numbers."""

    limit: str
    reason: str
    of_pool: bool
    """It holds everybody in the pool alike."""
