"""``gpuq nodes``: the machines, their workers and their GPUs.

Owns the join of what the journal says of a node with its newest beat. A reading that a
beat does not carry is absent here too.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from gpuq.client import Client, open_client
from gpuq.render import Cut, print_json, print_table, printable, short_duration, size, times
from gpuq.view import BEATS_OLD_MS, BEATS_RECENT_MS, BeatSeen, View, newest_beats, read_view
from ledger.events import Liveness, SlotBeat
from ledger.state import UNEXPLAINED, Node, Worker
from scheduling.placement import natural, trouble

HEADER = ("NODE", "WORKER", "POOL", "GPU", "MEMORY", "UTIL", "RUNNING", "BEAT", "STATE")
CUTS = (
    Cut("GPU", 10), Cut("STATE", 16), Cut("NODE", 0), Cut("UTIL", 0), Cut("POOL", 0),
    Cut("MEMORY", 0), Cut("GPU", 0), Cut("STATE", 8),
)  # fmt: skip
"""A worker's name begins with its node's."""

STALE_BEATS = 2
"""A beat older than this many beat intervals (2 minutes by default) is marked."""


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, beside its node and what the newest beat says of its slot."""

    node: Node
    worker: Worker
    beat: BeatSeen | None
    slot: SlotBeat | None


def nodes(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
    all_workers: Annotated[
        bool, typer.Option("--all", "-a", help="Also workers that have retired.")
    ] = False,
) -> None:
    """Show nodes, workers, GPUs, what they run and how old their last beat is."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    rows = _rows(client, view, all_workers=all_workers)
    stale_ms = STALE_BEATS * client.settings.timings.beat_ms
    if json:
        print_json(_json(view, rows, stale_ms))
    elif rows:
        print_table(HEADER, [_cells(view, row, stale_ms) for row in rows], CUTS)
    else:
        print("no worker serves this ledger: start some with 'gpuq up'")


def _rows(client: Client, view: View, *, all_workers: bool) -> list[_Row]:
    state = view.state
    workers = [w for w in state.workers.values() if all_workers or (w.ready and not w.retired)]
    beats = newest_beats(client.store, view.now_ms, BEATS_RECENT_MS)
    if {worker.node for worker in workers} - beats.keys():
        beats = {**newest_beats(client.store, view.now_ms, BEATS_OLD_MS), **beats}
    rows = []
    for worker in sorted(workers, key=lambda w: (w.node, natural(w.name))):
        beat = beats.get(worker.node)
        slot = beat.beat.slots.get(worker.name) if beat is not None else None
        rows.append(_Row(node=state.nodes[worker.node], worker=worker, beat=beat, slot=slot))
    return rows


def _standing(view: View, row: _Row, stale_ms: int) -> str:
    """What keeps the worker from new jobs, in a few words; "ok" where nothing does."""
    reported = row.slot.problem if row.slot is not None else ""
    problem = trouble(view.state, row.worker) or reported
    if row.node.drained and problem.startswith(f"node {row.node.name} is drained"):
        standing = "empty" if _is_empty(view, row.node) else "its jobs end"
        said = row.node.drained if row.node.drained != UNEXPLAINED else f"by {row.node.drained_by}"
        problem = f"drained, {standing} ({said})"
    if not problem and _is_stale(view, row, stale_ms):
        problem = "silent"
    if row.node.intruder:
        problem = f"{problem or 'ok'}; a second machine reports under this name"
    if not row.worker.pool:
        problem = problem or f"not in the roster of pool {row.worker.declared_pool}"
    return problem or "ok"


def _is_empty(view: View, node: Node) -> bool:
    """Whether no attempt holds a slot of the node."""
    return all(view.state.workers[name].occupant is None for name in node.workers)


def _beat_age_ms(view: View, row: _Row) -> int | None:
    return None if row.beat is None else max(0, view.now_ms - row.beat.at)


def _is_stale(view: View, row: _Row, stale_ms: int) -> bool:
    age_ms = _beat_age_ms(view, row)
    return age_ms is None or age_ms > stale_ms


def _cells(view: View, row: _Row, stale_ms: int) -> tuple[str, ...]:
    slot = row.slot or SlotBeat(alive=False)
    age_ms = _beat_age_ms(view, row)
    mark = " !" if _is_stale(view, row, stale_ms) else ""
    utilisation = slot.utilisation_percent
    occupant = row.worker.occupant
    return (
        row.worker.node,
        row.worker.name,
        row.worker.pool,
        row.worker.slot.gpu_name or row.worker.slot.kind,
        _memory(row.worker, slot),
        "" if utilisation is None else f"{utilisation}%",
        "" if occupant is None else f"{occupant.job}.{occupant.attempt}",
        ("none" if age_ms is None else short_duration(age_ms)) + mark,
        printable("; ".join((_standing(view, row, stale_ms), *_errors(slot)))),
    )


def _errors(slot: SlotBeat) -> list[str]:
    """What the GPU has told of that is no reason yet to give it no jobs."""
    ecc = f"{slot.ecc_errors} ECC errors" if slot.ecc_errors else ""
    xid = f"XID {slot.xid}" if slot.xid is not None else ""
    return [error for error in (ecc, xid) if error]


def _memory(worker: Worker, slot: SlotBeat) -> str:
    total = slot.memory_total_bytes or worker.slot.gpu_memory_bytes
    if slot.memory_used_bytes is None:
        return size(total) if total else ""
    return (
        f"{size(slot.memory_used_bytes)}/{size(total)}" if total else size(slot.memory_used_bytes)
    )


def _json(view: View, rows: list[_Row], stale_ms: int) -> dict[str, Any]:
    listed: dict[str, dict[str, Any]] = {}
    for row in rows:
        node = listed.setdefault(row.node.name, _node_json(view, row, stale_ms))
        node["workers"].append(_worker_json(view, row, stale_ms))
    return {
        "store": view.url,
        "ledger": view.state.ledger,
        **times(as_of=view.now_ms, page_at=view.page_at or None),
        "nodes": list(listed.values()),
    }


def _node_json(view: View, row: _Row, stale_ms: int) -> dict[str, Any]:
    beat = row.beat.beat if row.beat is not None else None
    return {
        "node": row.node.name,
        "liveness": row.node.liveness.value if row.worker.ready else Liveness.GONE.value,
        "drained": row.node.drained,
        "drained_by": row.node.drained_by if row.node.drained else "",
        "empty": _is_empty(view, row.node),
        "blocked": row.node.health.blocked,
        **times(probe_at=row.node.health.until or None),
        **times(beat_at=None if row.beat is None else row.beat.at),
        "beat_age_ms": _beat_age_ms(view, row),
        "beat_is_stale": _is_stale(view, row, stale_ms),
        "host": beat.host if beat is not None else None,
        "uptime_ms": beat.uptime_ms if beat is not None else None,
        "clock_offset_ms": beat.clock_offset_ms if beat is not None else None,
        "pending_facts": beat.pending_facts if beat is not None else None,
        "disk_free_bytes": dict(beat.disk_free_bytes) if beat is not None else None,
        "workers": [],
    }


def _worker_json(view: View, row: _Row, stale_ms: int) -> dict[str, Any]:
    worker, slot = row.worker, row.slot
    return {
        "worker": worker.name,
        "pool": worker.pool,
        "kind": worker.slot.kind,
        "gpu_name": worker.slot.gpu_name,
        "gpu_uuid": worker.slot.gpu_uuid,
        "gpu_memory_bytes": worker.slot.gpu_memory_bytes or None,
        "memory_used_bytes": slot.memory_used_bytes if slot is not None else None,
        "utilisation_percent": slot.utilisation_percent if slot is not None else None,
        "temperature_c": slot.temperature_c if slot is not None else None,
        "ecc_errors": slot.ecc_errors if slot is not None else None,
        "xid": slot.xid if slot is not None else None,
        "alive": slot.alive if slot is not None else None,
        "job": worker.occupant.job if worker.occupant is not None else None,
        "attempt": worker.occupant.attempt if worker.occupant is not None else None,
        "state": _standing(view, row, stale_ms),
        "retired": worker.retired,
    }
