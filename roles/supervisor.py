"""The supervisor: one per node; keeps its workers and its dispatcher alive, and beats.

Owns the decision when a process of the node is started again. A supervisor that comes back
finds what still runs; where it offers fewer slots than before, the workers of the others end
what is underway there, so that nothing waits for them for ever. It refuses to start where a
live node of its name beats from another machine. What its own crash costs: the workers go on
and beat in its place, as they do where it hangs; nothing is restarted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from ledger.errors import RequestError, TransientError
from ledger.events import Beat, Liveness, Slot, decode_beat
from ledger.journal import Journal
from ledger.keys import BEATS, after_stamp
from ledger.names import NodeName, WorkerName
from ledger.writer import BeatWriter, new_writer
from roles.adoption import left_over
from roles.beats import node_beat
from roles.context import Context
from roles.devices import Reading
from roles.host import DISPATCHER, Host
from roles.idle import Idleness

RESPAWN_MIN_MS = 500
RESPAWN_MAX_MS = 30_000
"""A process that keeps ending is started again after pauses between these two."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class SupervisorOptions:
    """``read_gpus`` gives the GPUs of this node now."""

    node: NodeName
    pool: str
    slots: Mapping[WorkerName, Slot]
    dispatches: bool
    read_gpus: Callable[[], Sequence[Reading]]
    idleness: Idleness | None = None
    """The node drains when it is over; None: never."""
    price_micros: int = 0
    """What the node costs an hour, in millionths; 0: not told."""


class Respawn:
    """When a process that ended is started again: at once, then ever more slowly."""

    def __init__(self) -> None:
        self._fails = 0
        self._started_ms = 0
        self._next_ms = 0

    def started(self, now_ms: int) -> None:
        self._started_ms = now_ms

    def ended(self, now_ms: int) -> None:
        """It ended now. One that had run for a while is not a failing one."""
        if now_ms - self._started_ms > RESPAWN_MAX_MS:
            self._fails = 0
        pause_ms = RESPAWN_MIN_MS << self._fails if self._fails else 0
        self._next_ms = now_ms + min(RESPAWN_MAX_MS, pause_ms)
        self._fails = min(self._fails + 1, 10)

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self._next_ms


class Supervisor:
    """Runs until it is drained (``drain``) or idle for long enough, or for ever."""

    def __init__(self, context: Context, options: SupervisorOptions, host: Host) -> None:
        self._context = context
        self._options = options
        self._host = host
        names = [host.process_of(worker) for worker in options.slots]
        names += [DISPATCHER] if options.dispatches else []
        self._respawns = {name: Respawn() for name in names}
        """By name of the process."""
        self._beats: BeatWriter | None = None
        self._next_beat_ms = 0
        self._said = ""
        self._draining = False
        self._order = signal.SIGTERM
        """What a draining node tells its workers."""
        self._was_idle = False
        self._waits_for_name = False
        self._leaving: dict[WorkerName, Slot] = {}
        """Slots that this node offered before; their workers end what is underway there."""
        self._journal = Journal(context.store, context.ledger)

    def run(self, begun: Callable[[], object] = lambda: None) -> bool:
        """Keep the node alive until a drain has ended; whether it was for want of work.

        Calls ``begun`` once the node is this supervisor's, before it serves it. Raises
        RequestError where this node already runs, here or on another machine, and
        TransientError where it cannot begin and has no idle limit to wait for.
        """
        if not self._host.take():
            raise RequestError(
                f"node {self._options.node} already runs on this machine: "
                "give this one another name with --node"
            )
        try:
            if not self._begin():
                return True
            writer = new_writer(self._context.rng, _beat_name(self._options.node))
            self._beats = BeatWriter(self._context.store, writer)
            begun()
            while not (self._draining and self._is_empty()):
                self.step()
                self._context.clock.sleep_ms(self._context.timings.respawn_ms)
            self._end_dispatcher()
        finally:
            self._host.release()
        return self._was_idle

    def _begin(self) -> bool:
        """Read the ledger; False where the node was idle for too long before that went."""
        while True:
            try:
                self._journal.load()
                self._refuse_second_machine()
                self._find_leaving()
            except TransientError as error:
                if self._options.idleness is None:
                    raise
                if self._options.idleness.is_over():
                    return False
                log.warning("cannot begin yet", node=self._options.node, reason=str(error))
                self._context.clock.sleep_ms(self._context.timings.retry_max_ms)
            else:
                return True

    def step(self) -> None:
        """One round: processes, then the beat when it is due or something changed."""
        if self._waits_for_name:
            with suppress(TransientError):
                self._waits_for_name = not self._name_is_free()
        for name, respawn in list(self._respawns.items()):
            if name == DISPATCHER or not (self._waits_for_name or self._draining):
                self._keep_alive(name, respawn)
        self._beat()
        self._end_if_idle()

    def drain(self) -> None:
        """Let running jobs end, start nothing more, then return from ``run``."""
        self._draining, self._order = True, signal.SIGTERM
        self._signal_workers(self._order)

    def stop_jobs(self) -> None:
        """As ``drain``, and stop what runs (TERM, grace, KILL)."""
        self._draining, self._order = True, signal.SIGUSR2
        self._signal_workers(self._order)

    def _end_if_idle(self) -> None:
        idleness = self._options.idleness
        if idleness is not None and not self._draining and idleness.is_over():
            log.info("no work for the idle limit", node=self._options.node)
            self._was_idle = True
            self.drain()

    def _keep_alive(self, name: str, respawn: Respawn) -> None:
        now_ms = self._context.clock.boot_ms()
        rc = self._host.ended(name)
        leaving = self._leaving.get(WorkerName(name))
        if rc == 0 and leaving is not None:
            log.info("left", worker=name)
            del self._leaving[WorkerName(name)], self._respawns[name]
            return
        if rc is not None:
            log.warning("ended", process=name, rc=rc)
            respawn.ended(now_ms)
        if not self._host.runs(name) and respawn.is_due(now_ms):
            self._host.start(name, leaving)
            respawn.started(now_ms)
            if self._draining and name != DISPATCHER:
                # A signal handler ordered so meanwhile, when nobody knew the new process.
                self._host.signal(name, self._order)

    def _find_leaving(self) -> None:
        """Slots that this node no longer offers: one that still serves has to be told so."""
        state, options = self._journal.projection.state, self._options
        self._leaving = left_over(state, options.node, self._context.machine, options.slots)
        for name in self._leaving:
            self._respawns[name] = Respawn()
            self._host.dismiss(name)

    def _signal_workers(self, signum: signal.Signals) -> None:
        for name in self._processes():
            self._host.signal(name, signum)

    def _is_empty(self) -> bool:
        return not any(self._host.runs(name) for name in self._processes())

    def _processes(self) -> list[str]:
        """Of all workers."""
        return [name for name in self._respawns if name != DISPATCHER]

    @property
    def _workers(self) -> Mapping[WorkerName, Slot]:
        return {**self._options.slots, **self._leaving}

    def _end_dispatcher(self) -> None:
        """End it last: what the workers reported at their end is posted by then."""
        clock, timings = self._context.clock, self._context.timings
        if DISPATCHER in self._respawns:
            self._host.signal(DISPATCHER, signal.SIGTERM)
            give_up_ms = clock.boot_ms() + timings.lease_ms
            while self._host.runs(DISPATCHER) and clock.boot_ms() < give_up_ms:
                clock.sleep_ms(timings.worker_tick_ms)

    # -- beats

    def _beat(self) -> None:
        assert self._beats is not None
        now_ms = self._context.clock.boot_ms()
        beat = node_beat(
            self._context,
            self._options.node,
            self._options.pool,
            self._workers,
            self._host,
            self._options.read_gpus() if self._has_gpus else (),
        )
        said = repr([(n, slot.alive, bool(slot.problem)) for n, slot in beat.slots.items()])
        if now_ms < self._next_beat_ms and said == self._said:
            return
        try:
            self._beats.put(beat)
        except (TransientError, RequestError) as error:
            log.warning("no beat", node=self._options.node, reason=str(error))
            self._next_beat_ms = now_ms + self._context.timings.beat_ms // 10
            return
        self._host.note_beat(now_ms)
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
