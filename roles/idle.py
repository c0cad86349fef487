"""Whether this machine has had no work for so long that it need not be kept.

Owns that judgement. It rests on what stands on this machine alone, so that an outage of the
bucket neither delays it nor hides a job that still runs, and on the clock that runs in
suspend too. A job that cannot be reported is no work.
"""

from __future__ import annotations

from pathlib import Path

from ledger.clock import Clock
from roles.launcher import LocalLauncher
from roles.status import read_status


class Idleness:
    """Looks at all workers whose folders are below ``state_dir``, of any ledger."""

    def __init__(self, clock: Clock, state_dir: Path, limit_ms: int) -> None:
        self._clock = clock
        self._state_dir = state_dir
        self._limit_ms = limit_ms
        self._since_ms = clock.boot_ms()
        self._mark: list[object] = []

    def is_over(self) -> bool:
        """Whether no job has run or come for the limit, since the last look that saw one.

        To be asked every few seconds. What came and went between two looks is told by the
        workers' cursors.
        """
        now_ms = self._clock.boot_ms()
        folders = sorted(self._state_dir.glob("*/workers/*"))
        mark: list[object] = []
        runs = False
        for folder in folders:
            launcher = LocalLauncher(folder / "jobs")
            known = launcher.known()
            status = read_status(folder)
            mark.append((folder, known, status.cursor if status is not None else 0))
            runs = runs or any(launcher.attempt(*ref).state() == "running" for ref in known)
        if runs or mark != self._mark:
            self._mark, self._since_ms = mark, now_ms
        return now_ms - self._since_ms >= self._limit_ms
