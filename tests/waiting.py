"""Waiting in tests: for a condition and with a deadline, never for a time.

The only place in tests/ that may sleep; ``test_architecture`` holds that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.02


def wait_until(condition: Callable[[], T], *, deadline_s: float, what: str) -> T:
    """Call ``condition`` until it is true and return what it returned.

    Raises ``AssertionError`` naming ``what`` once ``deadline_s`` seconds have passed; the
    condition is always tried at least once, and once more at the end.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        is_last = time.monotonic() >= end_s
        if outcome := condition():
            return outcome
        if is_last:
            raise AssertionError(f"after {deadline_s:g} s still not: {what}")
        time.sleep(_POLL_S)
