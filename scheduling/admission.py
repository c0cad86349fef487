"""Which submits may not run or never can, and why; and under what the others are scheduled.

Owns the reasons of ``reject`` and ``admit``. A job is only rejected for what the policy
forbids or what is known to be impossible when it arrives; a pool whose workers have not
reported yet may still get them.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger import arrays
from ledger.estimates import expected, may_use
from ledger.events import ENDS, LEAD_SIGNALS, JobAdmitted, JobExpired, JobRejected, JobSpec
from ledger.keys import PATH
from ledger.names import JOB_ID, NAME, NodeName, flow_id
from ledger.policy import ApiLimits, Limits, Refusal, Scope, Standing
from ledger.state import Job, State, Worker, standing_of
from ledger.transitions import tokens_of
from scheduling.daylimits import broken_by, day_limits
from scheduling.headroom import memory_of
from scheduling.quantities import gib, gpu_seconds, money
from scheduling.retries import RETRY_WORDS, is_retry_rule
from scheduling.waiting import DEADLINE

COUNT_MAX = 1_000_000_000

AFTER_MAX = 1_000
"""Jobs for which one may wait."""

ARTIFACTS_MAX = 100
"""Objects for which one may wait."""

EXCLUDE_MAX = 256
"""Nodes that one may exclude."""

PRIORITY_MAX = 100

RUN_MAX_MS = 3_650 * 86_400_000

KINDS_MAX = 10_000

_Kind = tuple[str, str, int, str, int, tuple[NodeName, ...]]


class Admission:
    """``verdict_on`` where many jobs ask alike: what no worker refuses is looked up once.

    ``forget`` must be called when workers, their pools or the policy have changed.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._sound: set[_Kind] = set()

    def forget(self) -> None:
        self._sound.clear()

    def verdict_on(self, job: Job, at: int) -> JobRejected | JobExpired | JobAdmitted | None:
        """Amortised O(1); O(workers) for the first job of a kind."""
        return verdict_on(self._state, job, at, self._refusal)

    def _refusal(self, state: State, spec: JobSpec) -> str:
        size = (spec.slots, spec.gpu_type, spec.gpu_memory_bytes)
        kind = (spec.pool, spec.worker, *size, spec.exclude)
        if kind in self._sound:
            return ""
        reason = refusal(state, spec)
        if not reason:
            if len(self._sound) >= KINDS_MAX:
                self._sound.clear()
            self._sound.add(kind)
        return reason


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
    allowed = [w for w in workers if w.node not in spec.exclude]
    if spec.worker.rpartition("-")[0] in spec.exclude or (workers and not allowed):
        where = spec.worker or f"pool {spec.pool!r}"
        return f"it excludes every node on which {where} is"
    return _too_large(spec, allowed) if allowed else ""


def verdict_on(
    state: State, job: Job, at: int, refused: Callable[[State, JobSpec], str] = refusal
) -> JobRejected | JobExpired | JobAdmitted | None:
    """What becomes of a job that was just submitted; None where it waits as it asked to.

    ``refused`` answers as ``refusal`` does.
    """
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
    reason = refused(state, spec) or _too_large_for_limits(state, spec, standing)
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
        if 0 < limits.gpu_memory_bytes < memory_of(spec):
            asked, most = gib(memory_of(spec)), gib(limits.gpu_memory_bytes)
            return f"it asks for {asked} of GPU memory, and {scope} may have {most} at once"
        reason = _too_large_for_a_day(state, spec, scope, limits)
        if reason:
            return reason
    pool = state.policy.pool(spec.pool)
    own = pool.class_slots.get(standing.workload_class)
    if own is not None and 0 < own.max < spec.slots:
        return (
            f"it needs {spec.slots} slots, and class {standing.workload_class} may run {own.max} "
            f"at once in pool {spec.pool}"
        )
    api = pool.api
    return _too_large_for_service(spec, api) if api is not None else ""


def _too_large_for_a_day(state: State, spec: JobSpec, scope: Scope, limits: Limits) -> str:
    """Which limit a day it would break all alone, or could not be counted for; else empty."""
    price = state.policy.pool(spec.pool).price
    counts_tokens = limits.money_per_day_micros and (price.input_micros or price.output_micros)
    if counts_tokens and not tokens_of(spec):
        return f"{scope} counts money: say --input-tokens and --max-output-tokens"
    workers = [w for w in state.workers.values() if w.ready and w.pool == spec.pool]
    has_gpus = any(worker.slot.kind == "gpu" for worker in workers)
    needs = may_use(state, spec, spec.slots if has_gpus else 0)
    match broken_by(day_limits(limits), needs, needs):
        case "GPU-seconds":
            used, most = gpu_seconds(needs.gpu_ms), limits.gpu_seconds_per_day
            said = "--time" if spec.time_limit_ms else expected(state, spec)[1]
            return f"it may use {used} GPU-seconds ({said}), and {scope} may use {most} a day"
        case "money":
            cost, allowed = money(needs.money_micros), money(limits.money_per_day_micros)
            return f"it may cost {cost}, and {scope} may spend {allowed} a day"
    return ""


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


def _malformed(spec: JobSpec) -> str:
    """What no client of ours would have written, and nothing here could work with."""
    if not JOB_ID.fullmatch(spec.id):
        return f"{spec.id!r} is not the id of a job"
    for what, name in (("an organization", spec.organization), ("a pool", spec.pool)):
        if not NAME.fullmatch(name):
            return f"{name!r} is not the name of {what}"
    if spec.array is not None and (malformed := arrays.malformed(spec.array)):
        return malformed
    if spec.slots < 1:
        return f"a job needs at least one slot, not {spec.slots}"
    sizes = (spec.estimate_ms, spec.time_limit_ms, spec.grace_ms, spec.gpu_memory_bytes)
    counts = (spec.retries, spec.requests, spec.input_tokens, spec.max_output_tokens)
    if min(*sizes, *counts, spec.lead_ms, spec.deadline_at, spec.begin_at) < 0:
        return "times, sizes and counts cannot be negative"
    if max(counts) > COUNT_MAX:
        return f"no job makes more than {COUNT_MAX} requests, or takes more tokens"
    if max(spec.estimate_ms, spec.time_limit_ms, spec.grace_ms) > RUN_MAX_MS:
        return "no job runs for longer than ten years"
    if spec.signal and spec.signal not in LEAD_SIGNALS:
        return f"no signal {spec.signal!r}; signals are {', '.join(LEAD_SIGNALS)}"
    wrong = [rule for rule in spec.retry_on if not is_retry_rule(rule)]
    if wrong:
        return f"cannot retry on {wrong[0]!r}; one of {RETRY_WORDS}"
    if abs(spec.priority) > PRIORITY_MAX:
        return f"a priority is between -{PRIORITY_MAX} and {PRIORITY_MAX}, not {spec.priority}"
    if not all(map(NAME.fullmatch, spec.exclude)) or len(spec.exclude) > EXCLUDE_MAX:
        return f"it excludes what is no node, or more than {EXCLUDE_MAX} of them"
    return _malformed_after(spec)


def _malformed_after(spec: JobSpec) -> str:
    for each in spec.after:
        if arrays.member_of(each.job) is not None:
            return f"it waits for {each}: a job can wait for a whole array, not for a member"
        if not JOB_ID.fullmatch(each.job) or each.end not in ENDS:
            return f"it waits for {each}, which is nothing to wait for"
        if each.job == spec.id:
            return "it waits for itself"
    odd = [path for path in spec.after_artifacts if not PATH.fullmatch(path)]
    if odd:
        return f"it waits for {odd[0][:80]!r}, which is no key of an object"
    if len(spec.after_artifacts) > ARTIFACTS_MAX:
        return f"no job waits for more than {ARTIFACTS_MAX} objects"
    if len(spec.after) > AFTER_MAX:
        return f"no job waits for more than {AFTER_MAX} others"
    return ""


def _too_large(spec: JobSpec, workers: list[Worker]) -> str:
    kinds = sorted({w.slot.gpu_name for w in workers} - {""})
    typed = [w for w in workers if spec.gpu_type.lower() in w.slot.gpu_name.lower()]
    if not typed:
        return f"no {spec.gpu_type!r} in pool {spec.pool!r} ({', '.join(kinds) or 'it has no GPU'})"
    largest = max(w.slot.gpu_memory_bytes for w in typed)
    if largest < spec.gpu_memory_bytes:
        return (
            f"no GPU of pool {spec.pool!r} has {gib(spec.gpu_memory_bytes)} of memory "
            f"(the largest has {gib(largest)})"
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
