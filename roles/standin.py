"""Beating in the supervisor's place, where a node's supervisor is gone and its worker lives.

Owns the stand-in's beat. Without it a supervisor that died would make its node look dead,
and after ``lost_ms`` the jobs that run there would be declared lost. It says only what a
worker knows: its own slot, and the newest fact of its writer.
"""

from __future__ import annotations

from ledger.events import Beat, SlotBeat
from ledger.names import NodeName, WorkerName, WriterName
from ledger.writer import BeatWriter
from roles.context import Context
from roles.status import WorkerStatus
from roles.workspace import Workspace


class StandIn:
    """Looks once a beat interval whether there is a supervisor, and beats if not."""

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

    def beat_if_alone(self, status: WorkerStatus) -> None:
        """At most one PUT a beat interval. Raises TransientError: the next one will do."""
        now_ms = self._context.clock.boot_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._context.timings.beat_ms
        if not self._workspace.is_supervised():
            self._beats.put(self._beat(status))

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
