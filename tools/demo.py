"""``make demo``: the main job on this machine, with no account and no GPU.

Owns the story and its expectations: two nodes with two CPU slots each on a folder store,
three organizations with weights 4, 2 and 1, real bash jobs, and at the end everything that
must be true of the ledger they left. Exits with 1 and names what is not. Nothing of it
runs any more when it returns, also after Ctrl-C; the folder with the ledger stays.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ledger.clock import SystemClock
from ledger.events import JobState
from ledger.journal import Journal, read_ledger
from ledger.names import JobId
from ledger.state import Job
from ledger.stores import open_store
from ledger.stores.base import Store
from tools.demo_checks import Expected, report_of
from tools.demo_view import Screen
from tools.fleet import Fleet, FleetError

SCRIPTS = Path(__file__).parent / "demo_jobs"
NODES = {"n1": 2, "n2": 2}
WEIGHTS = {"astro": 4, "bio": 2, "chem": 1}
DISCIPLINE = "sfq"
"""Start order: the one for which the bound of "Fair sharing" is a theorem."""


class Batch(NamedTuple):
    """An organization's share of the backlog. ``estimate`` is what a job is charged at first."""

    jobs: int
    work_us: int
    estimate: str


BATCHES = {
    "astro": Batch(jobs=36, work_us=650_000, estimate="1s"),
    "bio": Batch(jobs=8, work_us=1_650_000, estimate="2s"),
    "chem": Batch(jobs=9, work_us=650_000, estimate="1s"),
}
KINDS = ("hash", "sort", "primes")
SHORT_JOBS = 4
SHORT_US = 200_000
PINNED_TO = "n1-cpu0"

START_TIMEOUT_S = 30
RUN_TIMEOUT_S = 180
WORK_LINE = "work_us=650000"
"""Of the scripts; each job gets its own copy with another number."""

POLICY = f"""\
[organizations]
{"".join(f"{name}.weight = {weight}" + chr(10) for name, weight in WEIGHTS.items())}
[pools.default]
workers = ["n*"]
discipline = "{DISCIPLINE}"
"""


def main() -> int:
    """Run the demo; its exit code."""
    begun_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gpuq-demo-"))
    with Fleet(folder, (folder / "ledger").as_uri()) as fleet:
        try:
            wrong = Demo(fleet, folder / "ledger").run()
        except FleetError as error:
            wrong = [str(error)]
        except KeyboardInterrupt:
            print("\ninterrupted; ending what was started ...", file=sys.stderr)
            return 130
    print(f"\nin {time.monotonic() - begun_s:.0f} s; the ledger stays at {folder / 'ledger'}")
    if wrong:
        for line in wrong:
            print(f"WRONG: {line}")
        print(f"what the processes said is in {folder}/*.log and {folder}/state")
        return 1
    print("all as expected. Try on it:")
    for command in ("status", "status 01_train.sh", "logs fail.sh", "nodes --all", "replay verify"):
        print(f"  {_command()} {command} --store {folder / 'ledger'}")
    return 0


class Demo:
    """One run on one fresh store."""

    def __init__(self, fleet: Fleet, root: Path) -> None:
        self._fleet = fleet
        self._root = root
        self._ids: dict[str, list[str]] = {}

    def run(self) -> list[str]:
        """The story from first to last; what was not as it must be."""
        print("a folder as store, and a morning's work of three organizations")
        self._fleet.gpuq("init")
        self._submit_all()
        store = self._open()
        journal = Journal(store, read_ledger(store).ledger)
        print("two nodes with two CPU slots each: supervisors, workers, an elected leader")
        for name, slots in NODES.items():
            self._fleet.start_node(name, slots)
        expected = self._expected()
        with Screen(WEIGHTS) as screen:
            self._watch(journal, screen, expected)
        self._fleet.drain()
        self._fleet.show("status")
        return report_of(store, journal.ledger, self._fleet, expected)

    def _open(self) -> Store:
        return open_store(str(self._root), clock=SystemClock(), rng=random.Random())

    # -- work to do

    def _submit_all(self) -> None:
        """Everything waits before the first node is up, so that all three are backlogged."""
        (self._fleet.folder / "policy.toml").write_text(POLICY)
        said = self._fleet.gpuq("policy", "apply", str(self._fleet.folder / "policy.toml"))
        print(f"policy {said.strip()}, served in start order ({DISCIPLINE})")
        with ThreadPoolExecutor(len(BATCHES)) as pool:
            for organization, submitted in zip(
                BATCHES, pool.map(self._submit, BATCHES), strict=True
            ):
                self._ids[organization] = submitted
        for organization, ids in self._ids.items():
            print(f"submitted {len(ids)} jobs of {organization}, weight {WEIGHTS[organization]}")

    def _submit(self, organization: str) -> list[str]:
        """Ids of the organization's batch, then of what is special about it."""
        batch = BATCHES[organization]
        scripts = [
            self._script(KINDS[n % len(KINDS)], f"{organization}-{n:02d}", batch.work_us)
            for n in range(batch.jobs)
        ]
        ids = self._call_submit(organization, "--estimate", batch.estimate, *scripts)
        match organization:
            case "astro":
                short = [
                    self._script(KINDS[n % len(KINDS)], f"short-{n}", SHORT_US)
                    for n in range(SHORT_JOBS)
                ]
                ids += self._call_submit(organization, "--estimate", "1s", *short)
            case "bio":
                pair = [self._copy("00_prepare.sh"), self._copy("01_train.sh")]
                # The second first: what decides is the order of their names.
                ids += self._call_submit(organization, "--worker", PINNED_TO, *reversed(pair))
            case _:
                odd = [self._copy("fail.sh"), self._copy("long.sh")]
                ids += self._call_submit(organization, "--estimate", "1s", *odd)
        return ids

    def _call_submit(self, organization: str, *args: str) -> list[str]:
        return self._fleet.gpuq("submit", "-q", "--org", organization, *args).split()

    def _script(self, kind: str, suffix: str, work_us: int) -> str:
        """A script of its own in the project folder that works for ``work_us``."""
        text = (SCRIPTS / f"{kind}.sh").read_text()
        assert WORK_LINE in text, kind
        name = f"{kind}-{suffix}.sh"
        (self._fleet.work_dir / name).write_text(text.replace(WORK_LINE, f"work_us={work_us}"))
        return name

    def _copy(self, name: str) -> str:
        (self._fleet.work_dir / name).write_text((SCRIPTS / name).read_text())
        return name

    def _expected(self) -> Expected:
        ids = [JobId(job) for jobs in self._ids.values() for job in jobs]
        return Expected(
            jobs=ids,
            batch={
                JobId(job)
                for organization, jobs in self._ids.items()
                for job in jobs[: BATCHES[organization].jobs]
            },
            weights=WEIGHTS,
            slots=sum(NODES.values()),
            pinned_to=PINNED_TO,
        )

    # -- while it runs

    def _watch(self, journal: Journal, screen: Screen, expected: Expected) -> None:
        """Show the ledger until all has ended; cancel ``long.sh`` once it runs."""
        self._fleet.wait_until(
            lambda: bool(journal.follow()), deadline_s=START_TIMEOUT_S, what="a leader was elected"
        )
        cancelled = False

        def all_ended() -> bool:
            nonlocal cancelled
            journal.follow()
            state = journal.projection.state
            screen.show(state)
            long = _named(state.jobs.values(), "long.sh")
            if long is not None and long.state is JobState.RUNNING and not cancelled:
                screen.say("cancels long.sh, which would run for an hour")
                self._fleet.gpuq("cancel", "long.sh")
                cancelled = True
            jobs = [state.jobs.get(job) for job in expected.jobs]
            return all(job is not None and job.state.ended for job in jobs)

        self._fleet.wait_until(all_ended, deadline_s=RUN_TIMEOUT_S, what="every job ended")


def _named(jobs: Iterable[Job], name: str) -> Job | None:
    return next((job for job in jobs if job.spec.name == name), None)


def _command() -> str:
    """How gpuq is called from where the demo was."""
    program = Path(sys.executable).parent / "gpuq"
    here = Path.cwd()
    return str(program.relative_to(here)) if program.is_relative_to(here) else str(program)


if __name__ == "__main__":
    sys.exit(main())
