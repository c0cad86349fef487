"""The supervisor: one per node; keeps its workers and its dispatcher alive, and beats.

Owns the processes of a node. Each is its own session, so that none ends with another; a
supervisor that comes back finds them by their locks. It refuses to start where a live node
of its name beats from another machine. What a crash costs: the workers go on and beat
themselves; nothing is restarted until a supervisor is there again.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from ledger.errors import RequestError, TransientError
from ledger.events import Beat, Liveness, Slot, decode_beat
from ledger.journal import Journal
from ledger.keys import BEATS, after_stamp
from ledger.names import NodeName, WorkerName
from ledger.writer import BeatWriter, new_writer
from roles.beats import node_beat
from roles.context import Context
from roles.devices import GpuReader
from roles.locks import FileLock, is_locked
from roles.processes import signal_process
from roles.status import read_status

RESPAWN_MAX_MS = 30_000
"""Longest pause before a process that keeps ending is started again."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class SupervisorOptions:
    """``worker_argv`` and ``dispatcher_argv`` are whole commands; no dispatcher if None."""

    node: NodeName
    pool: str
    slots: Mapping[WorkerName, Slot]
    worker_argv: Callable[[WorkerName, Slot], Sequence[str]]
    dispatcher_argv: Sequence[str] | None
    gpus: GpuReader


class Child:
    """One process of the node: running if its lock is held, by whoever started it."""

    def __init__(self, context: Context, argv: Sequence[str], lock: Path, log_file: Path) -> None:
        self._context = context
        self._argv = argv
        self._lock = lock
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._fails = 0
        self._next_ms = 0

    def keep_alive(self) -> None:
        """Start it where it does not run; at once after the first end, then ever slower."""
        now_ms = self._context.clock.boot_ms()
        if self._process is not None and self._process.poll() is None:
            return
        if is_locked(self._lock):
            return
        if self._process is not None:
            log.warning("ended", process=self._argv[-1], rc=self._process.returncode)
            self._process = None
            pause_ms = min(RESPAWN_MAX_MS, (1 << self._fails) * 500) if self._fails else 0
            self._fails = self._fails + 1 if now_ms < self._next_ms + RESPAWN_MAX_MS else 0
            self._next_ms = now_ms + pause_ms
        if now_ms >= self._next_ms:
            self._start()

    def _start(self) -> None:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True
        return is_locked(self._lock)

    def end(self, signum: int) -> None:
        """Signal the process if this supervisor started it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)


class Supervisor:
    """Runs until it is drained (``drain``), or for ever."""

    def __init__(self, context: Context, options: SupervisorOptions) -> None:
        self._context = context
        self._options = options
        folder = context.node_dir(options.node)
        self._workers = {
            name: Child(
                context,
                options.worker_argv(name, slot),
                context.worker_dir(name) / "slot.lock",
                folder / "log" / f"{name}.log",
            )
            for name, slot in options.slots.items()
        }
        self._dispatcher = (
            Child(
                context,
                options.dispatcher_argv,
                folder / "dispatcher.lock",
                folder / "log" / "dispatcher.log",
            )
            if options.dispatcher_argv
            else None
        )
        self._folder = folder
        self._beats: BeatWriter | None = None
        self._next_beat_ms = 0
        self._said = ""
        self._draining = False
        self._waits_for_name = False
        self._journal = Journal(context.store, context.ledger)

    def run(self) -> None:
        """Keep the node alive; returns after a drain has ended.

        Raises RequestError where this node already runs, here or on another machine.
        """
        lock = FileLock.try_take(self._folder / "supervisor.lock")
        if lock is None:
            raise RequestError(
                f"node {self._options.node} already runs on this machine: "
                "give this one another name with --node"
            )
        try:
            self._journal.load()
            self._refuse_second_machine()
            writer = new_writer(self._context.rng, _beat_name(self._options.node))
            self._beats = BeatWriter(self._context.store, writer)
            while not (self._draining and self._is_empty()):
                self.step()
                self._context.clock.sleep_ms(self._context.timings.respawn_ms)
            self._end_dispatcher()
        finally:
            lock.release()

    def step(self) -> None:
        """One round: processes, then the beat when it is due or something changed."""
        if self._waits_for_name:
            with suppress(TransientError):
                self._waits_for_name = not self._name_is_free()
        elif not self._draining:
            for child in self._workers.values():
                child.keep_alive()
        if self._dispatcher is not None:
            self._dispatcher.keep_alive()
        self._beat()

    def drain(self) -> None:
        """Let running jobs end, start nothing more, then return from ``run``."""
        self._draining = True
        self._signal_workers(signal.SIGTERM)

    def stop_jobs(self) -> None:
        """As ``drain``, and stop what runs (TERM, grace, KILL)."""
        self._draining = True
        self._signal_workers(signal.SIGUSR2)

    def running_jobs(self) -> list[str]:
        """What this node's workers say they run: ``job.attempt``."""
        statuses = (read_status(self._context.worker_dir(name)) for name in self._workers)
        return [job for status in statuses if status for job in status.running]

    def _signal_workers(self, signum: int) -> None:
        for name in self._workers:
            status = read_status(self._context.worker_dir(name))
            if status is not None and status.process is not None:
                signal_process(status.process, signum)

    def _is_empty(self) -> bool:
        return not any(child.runs for child in self._workers.values())

    def _end_dispatcher(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.end(signal.SIGTERM)
            while self._dispatcher.runs:
                self._context.clock.sleep_ms(self._context.timings.worker_tick_ms)

    # -- beats

    def _beat(self) -> None:
        assert self._beats is not None
        now_ms = self._context.clock.boot_ms()
        beat = node_beat(
            self._context,
            self._options.node,
            self._options.pool,
            self._options.slots,
            self._options.gpus.read() if self._has_gpus else (),
        )
        said = repr([(name, slot.alive, slot.problem) for name, slot in beat.slots.items()])
        if now_ms < self._next_beat_ms and said == self._said:
            return
        try:
            self._beats.put(beat)
        except TransientError as error:
            log.warning("no beat", node=self._options.node, reason=str(error))
            self._next_beat_ms = now_ms + self._context.timings.beat_ms // 10
            return
        self._said = said
        self._next_beat_ms = now_ms + self._context.timings.beat_ms

    @property
    def _has_gpus(self) -> bool:
        return any(slot.kind == "gpu" for slot in self._options.slots.values())

    # -- the name was another machine's

    def _refuse_second_machine(self) -> None:
        """Raise where a live node of this name beats from another machine.

        Where that one has been silent for long enough, but no leader has said so yet, the
        workers wait until one does: their reports would be refused before.
        """
        if self._name_is_free():
            return
        beat = self._last_beat_elsewhere()
        if beat is not None:
            age_s = max(0, self._context.store.clock_ms() - beat.at) // 1000
            raise RequestError(
                f"node {self._options.node} is alive on another machine ({beat.host}, last "
                f"beat {age_s} s ago): choose another --node, or wait until it has been "
                f"silent for {self._context.timings.lost_ms // 1000} s"
            )
        self._waits_for_name = True
        log.warning("waits until the leader calls the former machine gone", node=self._options.node)

    def _name_is_free(self) -> bool:
        self._journal.follow()
        state = self._journal.projection.state
        known = state.nodes.get(self._options.node)
        return (
            known is None
            or known.machine in ("", self._context.machine)
            or known.liveness is Liveness.GONE
            or all(state.workers[name].retired for name in known.workers)
        )

    def _last_beat_elsewhere(self) -> Beat | None:
        """The newest beat of this node's name from another machine that is not yet old."""
        store, timings = self._context.store, self._context.timings
        start_after = after_stamp(BEATS, store.clock_ms() - timings.lost_ms)
        name = f"{_beat_name(self._options.node)}~"
        newest: Beat | None = None
        for entry in store.list(BEATS, start_after):
            if f".{name}" in entry.key:
                body = store.get(entry.key)
                beat = decode_beat(body) if body is not None else None
                if beat is not None and beat.machine != self._context.machine:
                    newest = beat
        return newest


def _beat_name(node: NodeName) -> str:
    return f"node-{node}"
