"""Which submits may not run or never can, and why; and under what the others are scheduled.

Owns the reasons of ``reject`` and ``admit``. A job is only rejected for what the policy
forbids or what is known to be impossible when it arrives; a pool whose workers have not
reported yet may still get them.
"""

from __future__ import annotations

from ledger import arrays
from ledger.events import LEAD_SIGNALS, JobAdmitted, JobExpired, JobRejected, JobSpec
from ledger.names import JOB_ID, NAME, flow_id
from ledger.policy import ApiLimits, Refusal, Standing
from ledger.state import Job, State, Worker, standing_of
from ledger.transitions import tokens_of
from scheduling.retries import RETRY_WORDS, is_retry_rule
from scheduling.waiting import DEADLINE

GIB = 1 << 30

COUNT_MAX = 1_000_000_000

RUN_MAX_MS = 3_650 * 86_400_000


def verdict_on(state: State, job: Job, at: int) -> JobRejected | JobExpired | JobAdmitted | None:
    """What becomes of a job that was just submitted; None where it waits as it asked to."""
    spec = job.spec
    malformed = _malformed(spec)
    if malformed:
        return JobRejected(job=job.id, reason=malformed)
    standing = standing_of(state.policy, spec)
    if isinstance(standing, Refusal):
        return JobRejected(job=job.id, reason=standing.reason)
    if job.over_rate:
        reason = f"{job.over_rate} submits faster than the policy allows: try again in a minute"
        return JobRejected(job=job.id, reason=reason)
    if 0 < spec.deadline_at <= at:
        return JobExpired(job=job.id, reason=DEADLINE)
    reason = refusal(state, spec) or _too_large_for_limits(state, spec, standing)
    if reason:
        return JobRejected(job=job.id, reason=reason)
    if standing == Standing(spec.organization, spec.workload_class):
        return None
    return JobAdmitted(
        job=job.id,
        organization=standing.organization,
        workload_class=standing.workload_class,
        reason=f"asked for {spec.organization}/{spec.workload_class}; so the policy says",
    )


def _too_large_for_limits(state: State, spec: JobSpec, standing: Standing) -> str:
    """Which limit it would break all alone; empty where none."""
    flow = flow_id(standing.organization, standing.workload_class, spec.pool)
    for scope, limits in state.policy.limits_of(flow):
        if 0 < limits.slots < spec.slots:
            return f"it needs {spec.slots} slots, and {scope} may run {limits.slots} at once"
    api = state.policy.pool(spec.pool).api
    return _too_large_for_service(spec, api) if api is not None else ""


def _too_large_for_service(spec: JobSpec, api: ApiLimits) -> str:
    tokens = tokens_of(spec)
    if api.tokens_per_minute and not tokens:
        return f"pool {spec.pool!r} counts tokens: say --input-tokens and --max-output-tokens"
    if 0 < api.tokens_per_minute < tokens:
        return (
            f"it may take {tokens} tokens, and pool {spec.pool!r} has "
            f"{api.tokens_per_minute} a minute"
        )
    if 0 < api.requests_per_minute < spec.requests:
        return (
            f"it makes {spec.requests} requests, and pool {spec.pool!r} has "
            f"{api.requests_per_minute} a minute"
        )
    return ""


def refusal(state: State, spec: JobSpec) -> str:
    """Why this job can never run as asked for; empty where it may. O(workers)."""
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
    if spec.array is not None and (wrong := arrays.malformed(spec.array)):
        return wrong
    if spec.slots < 1:
        return f"a job needs at least one slot, not {spec.slots}"
    sizes = (spec.estimate_ms, spec.time_limit_ms, spec.grace_ms, spec.gpu_memory_bytes)
    counts = (spec.retries, spec.requests, spec.input_tokens, spec.max_output_tokens)
    if min(*sizes, *counts, spec.lead_ms, spec.deadline_at) < 0:
        return "times, sizes and counts cannot be negative"
    if max(counts) > COUNT_MAX:
        return f"no job makes more than {COUNT_MAX} requests, or takes more tokens"
    if max(spec.estimate_ms, spec.time_limit_ms, spec.grace_ms) > RUN_MAX_MS:
        return "no job runs for longer than ten years"
    if spec.signal and spec.signal not in LEAD_SIGNALS:
        return f"no signal {spec.signal!r}; signals are {', '.join(LEAD_SIGNALS)}"
    rules = [rule for rule in spec.retry_on if not is_retry_rule(rule)]
    if rules:
        return f"cannot retry on {rules[0]!r}; one of {RETRY_WORDS}"
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
