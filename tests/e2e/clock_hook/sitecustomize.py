"""Loaded by Python at its start where this folder is on ``PYTHONPATH``: a sleep that works.

libfaketime 0.9 takes the deadline of an absolute ``clock_nanosleep``, which is how Python
sleeps, for one on a faked clock, even where that clock is left alone.
"""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def wait(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], float(seconds))


time.sleep = wait
