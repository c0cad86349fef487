"""Which submits can never run, and why.

Owns the reasons of ``reject``. A job is only rejected for what is known to be impossible
when it arrives; a pool whose workers have not reported yet may still get them.
"""

from __future__ import annotations

from ledger.events import LEAD_SIGNALS, JobSpec
from ledger.names import JOB_ID, NAME
from ledger.policy import CLASSES
from ledger.state import State, Worker

GIB = 1 << 30

RUN_MAX_MS = 3_650 * 86_400_000


def refusal(state: State, spec: JobSpec) -> str:
    """Why this job can never run as asked for; empty where it may. O(workers)."""
    malformed = _malformed(spec)
    if malformed:
        return malformed
    pools = {worker.pool for worker in state.workers.values()} | set(state.policy.pools)
    if state.policy.pools and spec.pool not in pools:
        return f"no pool {spec.pool!r}; pools are {', '.join(sorted(pools - {''}))}"
    pinned = state.workers.get(spec.worker)  # type: ignore[call-overload]
    if pinned is not None and pinned.ready and pinned.pool != spec.pool:
        return f"{spec.worker} serves pool {pinned.pool!r}, not {spec.pool!r}"
    workers = [w for w in state.workers.values() if w.ready and w.pool == spec.pool]
    if spec.worker:
        workers = [w for w in workers if pinned and w.node == pinned.node]
    return _too_large(spec, workers) if workers else ""


def _malformed(spec: JobSpec) -> str:
    """What no client of ours would have written, and nothing here could work with."""
    if not JOB_ID.fullmatch(spec.id):
        return f"{spec.id!r} is not the id of a job"
    for what, name in (("an organization", spec.organization), ("a pool", spec.pool)):
        if not NAME.fullmatch(name):
            return f"{name!r} is not the name of {what}"
    if spec.slots < 1:
        return f"a job needs at least one slot, not {spec.slots}"
    sizes = (spec.estimate_ms, spec.time_limit_ms, spec.grace_ms, spec.gpu_memory_bytes)
    if min(*sizes, spec.lead_ms) < 0:
        return "times and sizes cannot be negative"
    if max(spec.estimate_ms, spec.time_limit_ms, spec.grace_ms) > RUN_MAX_MS:
        return "no job runs for longer than ten years"
    if spec.signal and spec.signal not in LEAD_SIGNALS:
        return f"no signal {spec.signal!r}; signals are {', '.join(LEAD_SIGNALS)}"
    if spec.workload_class not in CLASSES:
        return f"no class {spec.workload_class!r}; classes are {', '.join(CLASSES)}"
    return ""


def _too_large(spec: JobSpec, workers: list[Worker]) -> str:
    kinds = sorted({w.slot.gpu_name for w in workers} - {""})
    typed = [w for w in workers if spec.gpu_type.lower() in w.slot.gpu_name.lower()]
    if not typed:
        return f"no {spec.gpu_type!r} in pool {spec.pool!r} ({', '.join(kinds) or 'it has no GPU'})"
    largest = max(w.slot.gpu_memory_bytes for w in typed)
    if largest < spec.gpu_memory_bytes:
        return (
            f"no GPU of pool {spec.pool!r} has {_gib(spec.gpu_memory_bytes)} of memory "
            f"(the largest has {_gib(largest)})"
        )
    fitting = [w for w in typed if w.slot.gpu_memory_bytes >= spec.gpu_memory_bytes]
    by_node: dict[tuple[str, str], int] = {}
    for worker in fitting:
        key = (worker.node, worker.slot.gpu_name)
        by_node[key] = by_node.get(key, 0) + 1
    widest = max(by_node.values())
    if widest < spec.slots:
        return f"no node of pool {spec.pool!r} has {spec.slots} such slots (at most {widest})"
    return ""


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3g} GiB"
