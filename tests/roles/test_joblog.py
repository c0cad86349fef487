"""The log's head, ring and mark against a naive model, and after a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from roles.joblog import JobLog, join_log

CHUNKS = st.lists(st.binary(max_size=300), max_size=12)


def expected_log(written: bytes, cap_bytes: int) -> bytes:
    """The first half of the cap, a mark, and the newest bytes of the other half."""
    if len(written) <= cap_bytes:
        return written
    head_bytes = cap_bytes // 2
    left_out_bytes = len(written) - cap_bytes
    mark = f"\n[gpuq: {left_out_bytes} bytes of this log left out here]\n".encode()
    return written[:head_bytes] + mark + written[head_bytes + left_out_bytes :]


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@given(chunks=CHUNKS, cap_bytes=st.integers(2, 700))
def test_any_output_gives_head_mark_and_tail(chunks: list[bytes], cap_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = JobLog(folder, cap_bytes)
        written = b""
        for chunk in chunks:
            log.add(chunk)
            written += chunk
            assert (folder / "log").read_bytes() == written[: cap_bytes // 2]
            assert disk_bytes(folder) <= cap_bytes + 16
        log.close()
        assert (folder / "log").read_bytes() == expected_log(written, cap_bytes)
        assert log.cut == (len(written) > cap_bytes)
        assert (log.total_bytes, log.lost_bytes, log.problem) == (len(written), 0, None)


@given(chunks=CHUNKS, cap_bytes=st.integers(2, 700), torn_bytes=st.integers(0, 500))
def test_a_log_whose_writer_was_killed_is_joined_once(
    chunks: list[bytes], cap_bytes: int, torn_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = JobLog(folder, cap_bytes)
        for chunk in chunks:
            log.add(chunk)
        written = b"".join(chunks)
        if len(written) > cap_bytes // 2:
            # As if a first joining had been killed after some bytes.
            with (folder / "log").open("ab") as file:
                file.write(b"?" * torn_bytes)
        join_log(folder, cap_bytes)
        join_log(folder, cap_bytes)
        assert (folder / "log").read_bytes() == expected_log(written, cap_bytes)
        log.close()


def test_a_log_without_room_for_its_tail_counts_what_is_lost(tmp_path: Path) -> None:
    log = JobLog(tmp_path, 100)
    log.add(b"x" * 80)
    (tmp_path / "log").unlink()  # so that joining fails, as it does on a dead disk
    log.close()
    assert log.problem == "No such file or directory"
    assert log.lost_bytes == 30


def test_joining_nothing_is_no_error(tmp_path: Path) -> None:
    join_log(tmp_path, 100)
    assert not any(tmp_path.iterdir())
