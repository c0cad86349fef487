"""Loaded by Python at its start where this folder is on ``PYTHONPATH``: a sleep that works.

libfaketime 0.9 takes the deadline of an absolute ``clock_nanosleep``, which is how Python
sleeps, for one on a faked clock, even where that clock is left alone.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
