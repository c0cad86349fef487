"""Lengths of time as numbers with units: ``90s``, ``1h30m``, ``2d``.

Owns the form that the command line and policy files share.
"""

from __future__ import annotations

import re

from ledger.timings import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

DURATION_MAX_MS = 3_650 * DAY_MS

_N = r"([0-9]{1,9})"
_UNITS = re.compile(rf"(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?")


def parse_units(text: str) -> int | None:
    """Milliseconds of ``text``; None where it is no number with a unit."""
    match = _UNITS.fullmatch(text)
    if not text or match is None:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS


def format_units(duration_ms: int) -> str:
    """The shortest text that ``parse_units`` reads as this; whole seconds."""
    text = ""
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "m"), (SECOND_MS, "s")):
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            text += f"{count}{unit}"
    return text or "0s"
