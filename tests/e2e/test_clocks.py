"""Nodes whose clock is wrong, on Ceph RGW, which refuses who is off by more than 15 minutes.

Wrong by libfaketime, for all processes of a node but its jobs; the clock that only measures
how time passes is left alone, as a wrongly set machine leaves it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ledger.events import JobState
from ledger.timings import MINUTE_MS
from tests.e2e.cluster import Cluster, Place

TIME_SCALE = 6
RIGHT_TO_MS = 2_000
DEADLINE_S = 120
CLOCK_HOOK = Path(__file__).parent / "clock_hook"


@pytest.fixture(scope="session")
def libfaketime() -> Path:
    """Its variant for programs with threads."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        missing = "missing libfaketime: apt-get install -y --no-install-recommends faketime"
        if os.environ.get("GPUQ_REQUIRE_SERVERS") == "1":
            pytest.fail(f"GPUQ_REQUIRE_SERVERS=1, but {missing}", pytrace=False)
        pytest.skip(missing)
    return found[0]


class SkewedCluster(Cluster):
    """The clock of node ``n1`` is off by ``offset`` (+10m); everybody else's is right."""

    def __init__(self, folder: Path, place: Place, libfaketime: Path, offset: str) -> None:
        self._clock = {
            "LD_PRELOAD": str(libfaketime),
            "FAKETIME": offset,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(CLOCK_HOOK),
        }
        super().__init__(folder, place, time_scale=TIME_SCALE)

    def _environment(self, name: str) -> dict[str, str]:
        right = super()._environment(name)
        return {**right, **self._clock} if name == "n1" else right

    def ask_clock_ms(self) -> int:
        """What time it is on ``n1``."""
        program = "import time; print(time.time_ns() // 1_000_000)"
        return int(
            subprocess.check_output([sys.executable, "-c", program], env=self._environment("n1"))
        )

    def run_wrongly(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of gpuq on ``n1``."""
        return subprocess.run(
            self.command(*args),
            cwd=self.work_dir,
            env=self._environment("n1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("offset", ["+10m", "-10m"])
def test_a_node_whose_clock_is_ten_minutes_off_leads_and_runs_jobs_at_the_right_times(
    ceph_place: Place, folder: Path, libfaketime: Path, offset: str
) -> None:
    with SkewedCluster(folder, ceph_place, libfaketime, offset) as cluster:
        assert abs(cluster.ask_clock_ms() - now_ms()) > 9 * MINUTE_MS, "nothing is faked"
        cluster.init()
        cluster.serve("n1", 1)
        note = f"date +%s%3N >>{folder / 'noted'}"
        cluster.script("timed.sh", note, cluster.gate("end"), note, rc=4)
        began_at = now_ms()
        (job,) = cluster.submit("timed.sh")
        cluster.wait_for_state(job, JobState.RUNNING)
        cluster.open_gate("end")
        cluster.wait_for_end(job)
        over_at = now_ms()

        known = cluster.job(job)
        attempt = known.attempts[-1]
        assert attempt.rc == 4
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        begin, end = map(int, (folder / "noted").read_text().split())
        times = (
            began_at,
            known.submitted_at,
            attempt.assigned_at,
            attempt.started_at,
            begin,
            end,
            attempt.ended_at,
            over_at,
        )
        for earlier, later in pairwise(times):
            assert earlier <= later + RIGHT_TO_MS, times
        page_times = [page.at for page in cluster.pages()]
        assert max(page_times) <= now_ms() + RIGHT_TO_MS
        assert cluster.leading_node() == "n1"
        assert cluster.verified()["void_pages"] == 0
        cluster.drain()


@pytest.mark.parametrize(
    ("offset", "said"), [("+20m", "20 minutes ahead of"), ("-20m", "20 minutes behind")]
)
def test_a_clock_that_the_server_does_not_accept_is_named_in_one_line(
    ceph_place: Place, folder: Path, libfaketime: Path, offset: str, said: str
) -> None:
    with SkewedCluster(folder, ceph_place, libfaketime, offset) as cluster:
        cluster.init()
        for command in (("status",), ("supervisor", "--node", "n1", "--slots", "1")):
            refused = cluster.run_wrongly(*command)
            assert (refused.returncode, refused.stdout) == (64, "")
            (line,) = refused.stderr.splitlines()
            assert f"this machine's clock is {said} the server's" in line
            assert "set this machine's clock" in line
