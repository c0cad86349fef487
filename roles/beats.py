"""What a node says of itself once a minute.

Owns the content of a node's beat: its slots as seen from outside their workers, GPU
readings, disks, uptime, clock offset, and the newest fact of each writer. A reading that
is not to be had is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ledger.events import Beat, Slot, SlotBeat
from ledger.names import NodeName, WorkerName, WriterName
from roles.context import Context
from roles.devices import Reading
from roles.host import Host
from roles.status import WorkerStatus

DISK_FREE_MIN_BYTES = 16 * 1024 * 1024
"""With less than this where it keeps its state a node starts nothing."""


def node_beat(
    context: Context,
    node: NodeName,
    pool: str,
    slots: Mapping[WorkerName, Slot],
    host: Host,
    readings: Sequence[Reading],
) -> Beat:
    """The beat of this node now; ``BeatWriter`` numbers it. Reads local files only."""
    by_index = {reading.index: reading for reading in readings}
    statuses = {name: host.status(name) for name in slots}
    processes = {name: host.process_of(name) for name in slots}
    runs = {process: host.runs(process) for process in set(processes.values())}
    free_bytes = host.free_bytes()
    disk_problem = _disk_problem(context.state_dir, free_bytes)
    now_ms = context.store.clock_ms()
    return Beat(
        writer=WriterName(""),
        n=0,
        at=now_ms,
        node=node,
        host=context.host,
        machine=context.machine,
        pool=pool,
        slots={
            name: _slot_beat(
                slot,
                statuses[name],
                _running_on(name, statuses),
                by_index.get(slot.index),
                alive=runs[processes[name]],
                disk_problem=disk_problem,
            )
            for name, slot in slots.items()
        },
        disk_free_bytes=free_bytes,
        uptime_ms=context.clock.boot_ms(),
        clock_offset_ms=now_ms - context.clock.wall_ms(),
        pending_facts=sum(status.pending_facts for status in statuses.values() if status),
        newest={
            status.writer: status.newest_key
            for status in statuses.values()
            if status and status.newest_key
        },
    )


def _disk_problem(state_dir: Path, free_bytes: Mapping[str, int]) -> str:
    """Why this machine must start nothing: a worker cannot say so where nothing can be kept."""
    free = free_bytes.get(str(state_dir))
    if free is None or free >= DISK_FREE_MIN_BYTES:
        return ""
    least_mib = DISK_FREE_MIN_BYTES // 1024**2
    return f"less than {least_mib} MiB are free on the disk of {state_dir}: make room there"


def _running_on(name: WorkerName, statuses: Mapping[WorkerName, WorkerStatus | None]) -> str:
    """What its worker runs, or another one that leads a job of several slots."""
    runs = [
        attempt
        for worker, status in statuses.items()
        if status is not None and (worker == name or name in status.slots)
        for attempt in status.running
    ]
    return ", ".join(runs)


def _slot_beat(
    slot: Slot,
    status: WorkerStatus | None,
    running: str,
    reading: Reading | None,
    *,
    alive: bool,
    disk_problem: str,
) -> SlotBeat:
    problem = disk_problem or (status.problem if status else "")
    if slot.kind != "gpu":
        reading = None
    elif reading is None:
        problem = problem or f"GPU {slot.index} cannot be seen"
    return SlotBeat(
        alive=alive,
        problem=problem or (reading.problem if reading else "") or "",
        running=running,
        utilisation_percent=reading.utilisation_percent if reading else None,
        memory_used_bytes=reading.memory_used_bytes if reading else None,
        memory_total_bytes=reading.memory_total_bytes if reading else None,
        temperature_c=reading.temperature_c if reading else None,
        ecc_errors=reading.ecc_errors if reading else None,
        xid=reading.xid if reading else None,
    )
