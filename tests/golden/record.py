"""Records a golden ledger: a real run whose pages every later version must still derive.

    unshare --map-root-user --uts sh -c 'hostname golden && exec python -m tests.golden.record v1'

Owns the story of the run: two nodes, some sixty jobs of three organizations that end in
every common way, a policy that changes, a leader and a worker killed with -9, a node drained
and taken back. What the ledger says of the machine it was recorded on is neutral. Beside the
objects stands ``expected.json``: how each job ended, read from the raw facts with nothing of
gpuq, and compared with what the job's own name says that it must come to.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ledger.clock import SystemClock
from ledger.events import JobState
from ledger.journal import Journal, read_ledger
from ledger.state import Job
from ledger.stores import open_store
from simulation.verify import verify
from tools.fleet import Fleet

HERE = Path(__file__).parent
HOST = "golden"
NODES = ("n1", "n2")
KEPT = ("gpuq.json", "journal", "facts", "claims", "mailbox")
STEP_TIMEOUT_S = 120

_POLICIES = {
    "first": ((4, 2, 1), "wfq"),
    "second": ((1, 2, 4), "sfq"),
}


def main() -> int:
    """Record into the folder that the command names; 0 if all came as the names say."""
    if socket.gethostname() != HOST:
        print(f"the host's name goes into the ledger: see this module's docstring; want {HOST}")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="gpuq-golden-"))
    with Fleet(folder, (folder / "ledger").as_uri(), {"GPUQ_USER": "golden"}) as fleet:
        Recording(fleet).run()
        _keep(folder / "ledger", HERE / sys.argv[1])
    return 0


class Recording:
    """The story. Each job's name begins with the state that it must end in."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        fleet.gpuq("init")
        store = open_store(
            fleet.store.removeprefix("file://"), clock=SystemClock(), rng=random.Random()
        )
        self._journal = Journal(store, read_ledger(store).ledger)
        self._ids: set[str] = set()

    def run(self) -> None:
        self._apply_policy("first")
        self._submit_first_jobs()
        for node in NODES:
            self._fleet.start_node(node, 2)
        self._wait_for_ended(12)
        self._fleet.gpuq("release", "completed-held")
        self._fleet.gpuq("cancel", "--reason", "no longer needed", "cancelled-held")
        self._cancel_a_running_job()
        self._apply_policy("second")
        self._kill_leader()
        self._kill_a_busy_worker()
        self._drain_a_node_for_a_while()
        self._wait_for_ended(len(self._ids))
        self._fleet.drain()

    def _submit_first_jobs(self) -> None:
        for organization, count in (("astro", 16), ("bio", 10), ("chem", 8)):
            for number in range(count):
                command = f"sleep 0.{number % 4 + 1}"
                self._submit(organization, f"completed-{number:02d}", command, "--estimate", "1s")
        self._submit("astro", "failed-3", "exit 3")
        self._submit("bio", "failed-137", "kill -9 $$")
        self._submit("bio", "failed-127", "no-such-program")
        self._submit("chem", "timeout-limit", "sleep 60", "--time", "1s", "--grace", "1s")
        self._submit("chem", "completed-wide", "sleep 0.5", "--gpus", "2", "--time", "1m")
        for name in ("completed-01_second", "completed-00_first"):
            self._submit("bio", name, "true", "--worker", "n1-cpu0")
        for name in ("completed-held", "cancelled-held"):
            self._submit("astro", name, "true", "--hold")
        for _ in range(2):
            self._submit("chem", "completed-keyed", "true", "--key", "k1")
        self._submit("astro", "completed-interactive", "true", "--class", "interactive")

    def _submit(self, organization: str, name: str, command: str, *flags: str) -> None:
        submitted = self._fleet.gpuq(
            *("submit", "-q", "--org", organization, "--name", name, "--chdir", "/tmp", *flags),
            *("--", "/bin/sh", "-c", command),
        )
        self._ids.update(submitted.split())

    def _apply_policy(self, name: str) -> None:
        weights, discipline = _POLICIES[name]
        lines = ["[organizations]"]
        pairs = zip(("astro", "bio", "chem"), weights, strict=True)
        lines += [f"{organization}.weight = {weight}" for organization, weight in pairs]
        lines += ["[pools.default]", 'workers = ["n*"]', f'discipline = "{discipline}"']
        path = self._fleet.folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n")
        self._fleet.gpuq("policy", "apply", str(path))

    def _cancel_a_running_job(self) -> None:
        self._submit("bio", "cancelled-running", "sleep 300")
        self._wait_for_state("cancelled-running", JobState.RUNNING)
        self._fleet.gpuq("cancel", "cancelled-running")

    def _kill_leader(self) -> None:
        """Jobs go on being submitted while nobody leads."""
        state = self._journal.projection.state
        node = state.leader.partition("~")[0].removeprefix("dispatcher-")
        epoch = state.epoch
        self._kill_9("dispatcher", node)
        for number in range(6):
            self._submit("chem", f"completed-late-{number}", "sleep 0.2")
        self._wait(lambda: self._journal.projection.state.epoch > epoch, "another leader")

    def _kill_a_busy_worker(self) -> None:
        self._submit("astro", "completed-adopted", "sleep 6", "--worker", "n2-cpu1")
        self._wait_for_state("completed-adopted", JobState.RUNNING)
        self._kill_9("worker", "n2-cpu1")

    def _drain_a_node_for_a_while(self) -> None:
        self._fleet.gpuq("drain", "n2", "--reason", "new cooling")
        for number in range(4):
            self._submit("bio", f"completed-drained-{number}", "sleep 0.3")
        ended = len(self._journal.projection.state.ended)
        self._wait_for_ended(ended + 2)
        self._fleet.gpuq("undrain", "n2")
        self._submit("bio", "completed-undrained", "true", "--worker", "n2-cpu0")

    def _kill_9(self, role: str, name: str) -> None:
        (process,) = (
            process
            for process in self._fleet.processes()
            if role in (words := process.cmdline()) and name in words
        )
        process.send_signal(signal.SIGKILL)

    # -- waiting

    def _jobs(self) -> list[Job]:
        return list(self._journal.projection.state.jobs.values())

    def _wait_for_ended(self, count: int) -> None:
        self._wait(lambda: len(self._journal.projection.state.ended) >= count, f"{count} ended")

    def _wait_for_state(self, name: str, state: JobState) -> None:
        def reached() -> bool:
            return any(job.spec.name == name and job.state is state for job in self._jobs())

        self._wait(reached, f"{name} is {state.value}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            self._journal.follow()
            return condition()

        self._fleet.wait_until(reached, deadline_s=STEP_TIMEOUT_S, what=what)


# -- keeping it


def _keep(root: Path, target: Path) -> None:
    """Copy the objects that prove the history, and write down what they must come to."""
    target.mkdir()
    for name in KEPT:
        source = root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / name)
    facts = list(_facts(root))
    (target / "blobs").mkdir()
    for fact in facts:
        if fact["kind"] == "policy":
            shutil.copy(root / "blobs" / fact["source"], target / "blobs")
    store = open_store(str(target), clock=SystemClock(), rng=random.Random())
    report = verify(store, read_ledger(store).ledger)
    assert report.difference is None, report.difference
    expected = {
        "pages": report.pages,
        "facts": report.facts,
        "decisions": report.decisions,
        "epochs": report.epochs,
        "head": report.head,
        "fair": report.fair,
        "jobs": _ends(facts),
    }
    text = json.dumps(expected, indent=1, sort_keys=True)
    (target / "expected.json").write_text(text + "\n")
    print(text)


def _facts(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((root / "facts").rglob("*.*")):
        yield json.loads(path.read_bytes())


def _ends(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """How each job ended, by the plain reading of what was reported."""
    cancelled = {fact["job"] for fact in facts if fact["kind"] == "cancel"}
    ends: dict[str, Any] = {}
    for fact in facts:
        if fact["kind"] == "submit":
            job = fact["job"]
            state = "CANCELLED" if job["id"] in cancelled else "PENDING"
            ends.setdefault(job["id"], {"name": job["name"], "state": state, "rc": None})
    for fact in facts:
        if fact["kind"] == "finish":
            end = ends[fact["job"]]
            end["rc"] = fact["rc"]
            if fact["job"] not in cancelled:
                ended = "COMPLETED" if fact["rc"] == 0 else "FAILED"
                end["state"] = "TIMEOUT" if fact["outcome"] == "timeout" else ended
    for end in ends.values():
        wanted = re.match("[a-z]+", end["name"])
        assert wanted is not None, end
        assert wanted[0].upper() == end["state"], end
    return ends


if __name__ == "__main__":
    sys.exit(main())
