"""What a policy means for each organization, in sentences.

Owns the words of the agreement: who owns it, which classes it may use, what it is owed when
everybody wants everything, what it may have besides, and what limits it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.names import flow_parts
from ledger.policy import Limits, Policy, Pool, WorkloadClass
from scheduling.duration import format_units
from scheduling.policy_text import price_fields
from scheduling.quantities import gib, money

PERCENT = 100


def agreement(policy: Policy) -> Iterator[tuple[str, list[str]]]:
    """By organization that the policy names, one sentence a line."""
    for name in policy.organizations:
        yield name, list(_terms(policy, name))


def _terms(policy: Policy, name: str) -> Iterator[str]:
    organization = policy.organizations[name]
    yield f"owner: {organization.owner or 'not said'}"
    members = ", ".join(organization.members) or "whoever says so"
    yield f"members: {members}"
    yield f"classes: {'; '.join(_classes(policy, name))}"
    for pool in policy.pools:
        yield f"owed in pool {pool} while all have work waiting: {_owed(policy, name, pool)}"
    if not policy.pools:
        yield f"owed in every pool while all have work waiting: {_owed(policy, name, '')}"
    yield (
        "when others are idle: whatever they leave free, at once; what it had meanwhile is not "
        "held against it, and what it did not use is not kept for it"
    )
    limits = list(_limits(organization.limits))
    for flow, agreed in policy.flows.items():
        if flow_parts(flow)[0] == name:
            limits += [f"{text} (flow {flow})" for text in _limits(agreed.limits)]
    yield f"limits of its own: {'; '.join(limits) or 'none'}"
    overdue = list(_overdue(policy, name))
    yield f"a wait is overdue: {'; '.join(overdue) or 'never'}"


def _classes(policy: Policy, name: str) -> Iterator[str]:
    for title, known in policy.classes.items():
        rules = [rule for rule in known.allow if rule.matches_organization(name)]
        if known.allow and not rules:
            yield f"{title} not ({_otherwise(known)})"
        elif any(rule.submitters or rule.pools or rule.names for rule in rules):
            yield f"{title} for some of its jobs (allow rules)"
        else:
            yield title


def _otherwise(known: WorkloadClass) -> str:
    return f"such jobs become {known.demote_to}" if known.demote_to else "such jobs are rejected"


def _owed(policy: Policy, name: str, pool: str) -> str:
    """Its part of the weights of all organizations that the policy names, in percent."""
    own = policy.organization_weight(name)
    total = sum(policy.organization_weight(each) for each in policy.organizations)
    share = f"{PERCENT * own / total:.1f} %"
    if policy.pool(pool).discipline in ("fifo", "strict"):
        return f"nothing, it is served by {policy.pool(pool).discipline}"
    if policy.pool(pool).share == "flow":
        return f"{share}, if each organization uses the same classes; each flow has its own share"
    return f"{share}, whatever its classes"


def _limits(limits: Limits) -> Iterator[str]:
    if limits.slots:
        yield f"at most {limits.slots} slots at once"
    if limits.slots_percent:
        yield f"at most {limits.slots_percent} % of a pool's slots at once"
    if limits.submissions_per_minute:
        burst = limits.submissions_burst or limits.submissions_per_minute
        yield f"{limits.submissions_per_minute} submissions a minute, {burst} at once"
    if limits.queue_length:
        yield f"at most {limits.queue_length} jobs waiting"
    if limits.queue_age_ms:
        yield f"no job waits longer than {limits.queue_age_ms // 1000} s"
    if limits.gpu_memory_bytes:
        yield f"at most {gib(limits.gpu_memory_bytes)} of GPU memory asked for at once"
    if limits.gpu_seconds_per_day:
        yield f"at most {limits.gpu_seconds_per_day} GPU-seconds within 24 hours"
    if limits.money_per_day_micros:
        yield f"at most {money(limits.money_per_day_micros)} of money within 24 hours"


def _overdue(policy: Policy, name: str) -> Iterator[str]:
    for title, known in policy.classes.items():
        if known.wait_target_ms:
            yield f"in {title} after {known.wait_target_ms // 1000} s"
    for flow, agreed in policy.flows.items():
        if flow_parts(flow)[0] == name and agreed.wait_target_ms:
            yield f"in flow {flow} after {agreed.wait_target_ms // 1000} s"


def pool_terms(pool: Pool) -> Iterator[str]:
    """What holds for everybody in a pool."""
    yield f"served by {pool.discipline}"
    yield from _limits(pool.limits)
    for title, own in pool.class_slots.items():
        parts = ((own.min, "kept"), (own.nominal, "owed"), (own.max, "at most"))
        slots = ", ".join(f"{word} {slots}" for slots, word in parts if slots)
        yield f"slots of class {title}: {slots}"
    if pool.long_jobs is not None:
        yield (
            f"at most {pool.long_jobs.max_running} jobs at once of more than "
            f"{format_units(pool.long_jobs.above_ms)} of slot time"
        )
    for title, age_ms in pool.queue_age_ms.items():
        yield f"no {title} job waits longer than {age_ms // 1000} s"
    api = pool.api
    if api is not None:
        counted = (
            (api.requests_per_minute, "requests a minute"),
            (api.tokens_per_minute, "tokens a minute"),
            (api.in_flight, "calls in flight"),
        )
        yield from (f"at most {most} {what}" for most, what in counted if most)
    if pool.memory_threshold_bytes:
        threshold = gib(pool.memory_threshold_bytes)
        yield f"a job is charged more that asks for more than {threshold} of a GPU's memory"
    for what, price in price_fields(pool.price).items():
        yield f"{what.replace('_', ' ')}: {price}"
    if pool.retry.attempts_max:
        yield f"at most {pool.retry.attempts_max} attempts of a job"
    yield f"retries: {pool.retry.budget_percent} % of a flow's attempts"
