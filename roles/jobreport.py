"""What a job says of its own calls of an external service: the file ``GPUQ_REPORT``.

Owns its reading. A program appends one JSON object a line, with any of the integers of
``ledger.events.Report``; the lines are added up, so that each call can write its own. What
cannot be read counts for nothing, and never against the job.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ledger.events import Report

REPORT_MAX_BYTES = 4 << 20
COUNT_MAX = 1 << 50

_FIELDS = Report.__struct_fields__
_decode_line = msgspec.json.Decoder(dict[str, object]).decode


def read_report(path: Path) -> Report | None:
    """The sum of all lines; None where the job wrote nothing that can be read."""
    try:
        with path.open("rb") as file:
            lines = file.read(REPORT_MAX_BYTES).splitlines()
    except OSError:
        return None
    sums = dict.fromkeys(_FIELDS, 0)
    found = False
    for line in lines:
        for name, value in _figures(line).items():
            sums[name] = min(COUNT_MAX, sums[name] + value)
            found = True
    return Report(**sums) if found else None


def _figures(line: bytes) -> dict[str, int]:
    """What one line says; negative numbers and other things are no figures."""
    try:
        said = _decode_line(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {
        name: value
        for name, value in said.items()
        if name in _FIELDS and type(value) is int and 0 <= value <= COUNT_MAX
    }
