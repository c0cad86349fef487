"""Beating in the supervisor's place, where a node's supervisor is gone and its worker lives.

Owns the stand-in's beat, and when the bucket last heard of this node. Without it a supervisor
that died, or hangs, would make its node look dead, and after ``lost_ms`` the jobs that run
there would be declared lost. It says only what a worker knows: its own slot, and the newest
fact of its writer.
"""

from __future__ import annotations

from ledger.events import Beat, SlotBeat
from ledger.names import NodeName, WorkerName, WriterName
from ledger.writer import BeatWriter
from roles.context import Context
from roles.status import WorkerStatus
from roles.workspace import Workspace

LOOKS_PER_BEAT = 10
"""So often in a beat interval it is looked whether somebody beats."""

HUNG_AFTER_BEATS = 2
"""A supervisor that was not heard for so many intervals does its work no more."""


class StandIn:
    """Looks whether there is a supervisor that beats, and beats once an interval if not."""

    def __init__(
        self,
        context: Context,
        workspace: Workspace,
        writer: WriterName,
        *,
        worker: WorkerName,
        node: NodeName,
        pool: str,
    ) -> None:
        self._context = context
        self._workspace = workspace
        self._worker = worker
        self._node = node
        self._pool = pool
        self._beats = BeatWriter(context.store, writer)
        self._due_ms = context.clock.boot_ms() + context.timings.beat_ms
        self._heard_ms: int | None = None

    def beat_if_alone(self, status: WorkerStatus) -> None:
        """At most one PUT a beat interval. Raises TransientError: call again."""
        now_ms, beat_ms = self._context.clock.boot_ms(), self._context.timings.beat_ms
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + beat_ms // LOOKS_PER_BEAT
        if not self._is_supervised(now_ms):
            self._beats.put(self._beat(status))
            self._due_ms = now_ms + beat_ms
            self.note_heard(now_ms)

    def note_heard(self, boot_ms: int) -> None:
        """The bucket has something of this worker whose put began at that time."""
        self._heard_ms = boot_ms

    def heard_ms(self) -> int | None:
        """Boot time at which the bucket last got a sign of life of this node, if any is known.

        What can only be read of the bucket is none: the leader judges by what it hears.
        """
        heard = [ms for ms in (self._heard_ms, self._workspace.last_beat_ms()) if ms is not None]
        return max(heard, default=None)

    def _is_supervised(self, now_ms: int) -> bool:
        last_ms = self._workspace.last_beat_ms()
        is_fresh = (
            last_ms is not None
            and now_ms - last_ms <= HUNG_AFTER_BEATS * self._context.timings.beat_ms
        )
        return is_fresh and self._workspace.is_supervised()

    def _beat(self, status: WorkerStatus) -> Beat:
        context = self._context
        now_ms = context.store.clock_ms()
        return Beat(
            writer=WriterName(""),
            n=0,
            at=now_ms,
            node=self._node,
            host=context.host,
            machine=context.machine,
            pool=self._pool,
            slots={
                self._worker: SlotBeat(
                    alive=True, problem=status.problem, running=", ".join(status.running)
                )
            },
            uptime_ms=context.clock.boot_ms(),
            clock_offset_ms=now_ms - context.clock.wall_ms(),
            pending_facts=status.pending_facts,
            newest={status.writer: status.newest_key} if status.newest_key else {},
        )
