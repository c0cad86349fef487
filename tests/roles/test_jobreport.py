"""What a job writes into GPUQ_REPORT, as the ledger takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.events import Report
from roles.jobreport import read_report

CASES = [
    (b"", None),
    (b"no json\n[1]\n", None),
    (b'{"requests": -3, "input_tokens": true, "output_tokens": "9"}', None),
    (b'{"requests": 2, "input_tokens": 10}', Report(requests=2, input_tokens=10)),
    (
        # One line a call; what is not known is passed over; the last line may lack its end.
        b'{"requests": 1, "input_tokens": 5, "output_tokens": 2, "model": "x"}\n'
        b'broken\n{"requests": 1, "throttled": 3, "timeouts": 1}',
        Report(requests=2, input_tokens=5, output_tokens=2, throttled=3, timeouts=1),
    ),
]


@pytest.mark.parametrize(("written", "said"), CASES)
def test_lines_are_added_up_and_the_rest_counts_for_nothing(
    tmp_path: Path, written: bytes, said: Report | None
) -> None:
    path = tmp_path / "report"
    path.write_bytes(written)
    assert read_report(path) == said


def test_no_file_is_no_report(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none") is None
