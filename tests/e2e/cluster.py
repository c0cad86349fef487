"""A fleet of real processes that a test kills, and its ledger as an outsider reads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ledger.events import JobState, Page, decode_page
from ledger.journal import Journal, read_ledger
from ledger.keys import JOURNAL, LOGS, log_key
from ledger.names import JobId, NodeName, WorkerName
from ledger.state import Job, State
from ledger.stores.settling import SettlingStore
from tests.waiting import wait_until
from tools.fleet import Fleet

READY_S = 60
ENDED_S = 90


PREFIX = "team/queue"
"""Where in its bucket a ledger stands."""


def key_of(path: str) -> str:
    """The key, as the ledger has it, of a request's path or URL."""
    return path.partition(f"/{PREFIX}/")[2]


@dataclass(frozen=True)
class Place:
    """A fresh store: how commands find it (``flags`` of ``init``), and the way past any proxy."""

    url: str
    open: Callable[[], SettlingStore]
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def store(self) -> SettlingStore:
        """As the test itself looks at it."""
        return self.open()


class Cluster(Fleet):
    """``time_scale`` divides every period of the protocol."""

    def __init__(self, folder: Path, place: Place, *, time_scale: int) -> None:
        super().__init__(folder, place.url, {**place.env, "GPUQ_TIME_SCALE": str(time_scale)})
        self._flags = place.flags
        self.bucket = place.store
        self.witness = folder / "witness"
        self.witness.touch()

    def init(self) -> None:
        """Make the ledger; the configuration file says how its store is reached."""
        self.gpuq("init", self.store, *self._flags)
        self._journal = Journal(self.bucket, read_ledger(self.bucket).ledger)

    def serve(self, node: str, slots: int) -> None:
        """Start a node and wait until a leader has admitted its workers."""
        self.start_node(node, slots)

        def is_ready() -> bool:
            workers = [w for w in self.state().workers.values() if w.node == node and w.ready]
            return len(workers) == slots

        self.wait_until(is_ready, deadline_s=READY_S, what=f"the workers of {node} are ready")

    # -- jobs

    def script(self, name: str, *lines: str, rc: int = 0) -> str:
        """Write a bash job that notes its begin and its end in the witness file."""
        note = f'echo "{name} $GPUQ_ATTEMPT'
        body = ["#!/bin/bash", f'{note} begin" >>{self.witness}', *lines]
        body += [f'{note} end" >>{self.witness}', f"exit {rc}", ""]
        (self.work_dir / name).write_text("\n".join(body))
        return name

    def gate(self, name: str) -> str:
        """A line of bash that waits until ``open_gate(name)``."""
        return f"until [ -e {self.folder / name} ]; do sleep 0.05; done"

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    def runs_of(self, name: str) -> list[tuple[int, str]]:
        """What the runs of a job noted: its attempt's number, and begin or end."""
        lines = (line.split() for line in self.witness.read_text().splitlines())
        return [(int(attempt), what) for job, attempt, what in lines if job == name]

    def wait_for_begin(self, name: str, attempt: int | None = None) -> int:
        """Wait until a job (in this attempt) has begun to run; the number of the attempt."""

        def begun() -> list[int]:
            return [n for n, what in self.runs_of(name) if what == "begin" and attempt in (None, n)]

        self.wait_until(lambda: bool(begun()), deadline_s=ENDED_S, what=f"{name} runs")
        return begun()[-1]

    def submit(self, *args: str) -> list[JobId]:
        """Submit scripts; their jobs' ids in the same order."""
        return [JobId(job) for job in self.gpuq("submit", "-q", *args).split()]

    def command(self, *args: str) -> tuple[str, ...]:
        """One gpuq command, to be run by the test itself in ``work_dir`` with ``user_env``."""
        return (sys.executable, "-m", "gpuq", args[0], "--store", self.store, *args[1:])

    @property
    def user_env(self) -> Mapping[str, str]:
        return self._environment("user")

    def logs(self, job: JobId) -> bytes:
        """What ``gpuq logs`` writes."""
        done = subprocess.run(
            self.command("logs", job),
            cwd=self.work_dir,
            env=self.user_env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
        return done.stdout

    def log_pieces(self, job: JobId, attempt: int) -> bytes:
        """What was shipped of the log while the job ran."""
        keys = [entry.key for entry in self.bucket.list(f"{LOGS}{job}.{attempt}/")]
        return b"".join(self.bucket.get(key) or b"" for key in keys)

    def whole_log(self, job: JobId, attempt: int) -> bytes:
        """The object that holds it."""
        body = self.bucket.get(log_key(job, attempt))
        assert body is not None, f"there is no log of {job}.{attempt}"
        return body

    def ended(self) -> dict[str, dict[str, Any]]:
        """By id, the jobs that ``gpuq status`` shows as ended."""
        said = msgspec.json.decode(self.gpuq("status", "--json"))
        return {job["id"]: job for job in said["ended"]}

    # -- the ledger

    def state(self) -> State:
        """The journal folded to its end."""
        self._journal.follow()
        return self._journal.projection.state

    def job(self, job: JobId) -> Job:
        return self.state().jobs[job]

    def pages(self) -> list[Page]:
        """All pages, of which none is missing between the first and the last."""
        bodies = [self.bucket.get(entry.key) for entry in self.bucket.list(JOURNAL)]
        pages = [decode_page(body) for body in bodies if body is not None]
        assert [page.seq for page in pages] == list(range(len(pages)))
        return pages

    def wait_for_state(self, job: JobId, *states: JobState) -> Job:
        def reached() -> bool:
            known = self.state().jobs.get(job)
            return known is not None and known.state in states

        what = f"{job} is {' or '.join(states)}"
        self.wait_until(reached, deadline_s=ENDED_S, what=what)
        return self.job(job)

    def wait_for_end(self, *jobs: JobId) -> None:
        def over() -> bool:
            known = self.state().jobs
            return all(job in known and known[job].state.ended for job in jobs)

        self.wait_until(over, deadline_s=ENDED_S, what=f"{', '.join(jobs)} ended")

    def verified(self) -> dict[str, Any]:
        """The report of ``gpuq replay verify``, which must have found nothing."""
        report: dict[str, Any] = msgspec.json.decode(self.gpuq("replay", "verify", "--json"))
        assert report["difference"] is None
        return report

    # -- processes

    def leading_node(self) -> NodeName:
        return NodeName(self.state().leader.partition("~")[0].removeprefix("dispatcher-"))

    def worker(self, name: str) -> psutil.Process:
        return self._process("worker", "--worker", name)

    def kill_worker(self, name: WorkerName) -> None:
        """kill -9 it, and wait until another incarnation of it is admitted."""
        former = self.state().workers[name].writer
        self.worker(name).kill()
        self.wait_until(
            lambda: self.state().workers[name].writer != former,
            deadline_s=READY_S,
            what=f"{name} is back",
        )

    def kill_leader(self) -> None:
        """kill -9 it, and wait until the journal names another one."""
        former = self.state().leader
        self._process("dispatcher", "--node", self.leading_node()).kill()
        self.wait_until(
            lambda: self.state().leader != former, deadline_s=READY_S, what="another one leads"
        )

    def kill_node(self, node: str) -> None:
        """kill -9 of all that runs there: supervisor, dispatcher, workers, runners, jobs."""
        supervisor = self._supervisors.pop(node)
        supervisor.kill()
        supervisor.wait()
        wait_until(lambda: not self._killed(node), deadline_s=READY_S, what=f"{node} is dead")

    def _killed(self, node: str) -> list[psutil.Process]:
        folder = str(self.folder / "state" / node)
        victims = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                texts = [*process.environ().values(), *process.cmdline()]
                if any(folder in text for text in texts):
                    process.kill()
                    victims.append(process)
        return victims

    def _process(self, *words: str) -> psutil.Process:
        """The one process whose command line holds these words."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if set(words) <= set(process.cmdline()):
                    found.append(process)
        assert len(found) == 1, f"{found} instead of one process with {words}"
        return found[0]
