"""A ``Policy`` as the text of a file: ``parse_policy(format_policy(policy)) == policy``.

Owns the one form in which policies are written: TOML, all that is not a default, and the
weights always. Times are whole seconds, as no file can say others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ledger.policy import (
    WEIGHT_ONE,
    AllowRule,
    ApiLimits,
    ClassSlots,
    FlowAgreement,
    Limits,
    LongJobs,
    Organization,
    Policy,
    Pool,
    Price,
    RetryRule,
    WorkloadClass,
)
from scheduling.duration import format_units
from scheduling.policy_file import DEMOTE
from scheduling.quantities import format_bytes, money

_BARE = re.compile(r"[A-Za-z0-9_-]+")

Fields = Mapping[str, str]
"""What a table says: keys, and values as they are written."""


def format_policy(policy: Policy) -> str:
    """The file that says ``policy``."""
    tables = []
    if policy.default_organization:
        tables.append(f"default_organization = {text(policy.default_organization)}\n")
    for kind, named in (
        ("organizations", {name: _organization(o) for name, o in policy.organizations.items()}),
        ("classes", {name: _workload_class(c) for name, c in policy.classes.items()}),
        ("pools", {name: _pool(pool) for name, pool in policy.pools.items()}),
        ("flows", {flow: _flow(agreement) for flow, agreement in policy.flows.items()}),
    ):
        for name, fields in named.items():
            lines = [f"{key} = {value}\n" for key, value in fields.items()]
            tables.append(f"[{kind}.{_key(name)}]\n{''.join(lines)}")
    return "\n".join(tables)


def weight_text(weight: int) -> str:
    """``4`` or ``0.5``, of thousandths."""
    whole, thousandths = divmod(weight, WEIGHT_ONE)
    return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")


def text(value: str) -> str:
    """A TOML string. All that files accept is printable: only quotes need care."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else text(name)


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(values)}]"


def _inline(fields: Fields) -> str:
    return f"{{{', '.join(f'{key} = {value}' for key, value in fields.items())}}}"


def _organization(organization: Organization) -> Fields:
    fields = {"weight": weight_text(organization.weight)}
    if organization.owner:
        fields["owner"] = text(organization.owner)
    if organization.members:
        fields["members"] = _list(map(text, organization.members))
    return {**fields, **_limits(organization.limits)}


def _workload_class(known: WorkloadClass) -> Fields:
    fields = {"weight": weight_text(known.weight)}
    if known.allow:
        fields["allow"] = _list(_inline(dict(_rule(rule))) for rule in known.allow)
    if known.demote_to:
        fields["otherwise"] = text(DEMOTE + known.demote_to)
    if known.strict:
        fields["strict"] = "true"
    if known.quantum_ms:
        fields["quantum"] = _duration(known.quantum_ms)
    if known.size_buckets is not None:
        bounds = _list(map(_duration, known.size_buckets.bounds_ms))
        rule = {"bounds": bounds, "small_first": str(known.size_buckets.small_first)}
        fields["size_buckets"] = _inline(rule)
    fields |= _long_jobs(known.long_jobs)
    return {**fields, **_wait_target(known.wait_target_ms), **_limits(known.limits)}


def _rule(rule: AllowRule) -> Iterator[tuple[str, str]]:
    for key in rule.__struct_fields__:
        patterns = getattr(rule, key)
        if patterns:
            yield key, _list(map(text, patterns))


def _flow(agreement: FlowAgreement) -> Fields:
    return {**_wait_target(agreement.wait_target_ms), **_limits(agreement.limits)}


def _wait_target(wait_target_ms: int) -> Fields:
    return {"wait_target": _duration(wait_target_ms)} if wait_target_ms else {}


def _pool(pool: Pool) -> Fields:
    fields: dict[str, str] = {}
    if pool.workers:
        fields["workers"] = _list(map(text, pool.workers))
    fields["discipline"] = text(pool.discipline)
    fields["share"] = text(pool.share)
    if pool.class_weights:
        weights = {name: weight_text(weight) for name, weight in pool.class_weights.items()}
        fields["weights"] = _inline(weights)
    if pool.class_slots:
        slots = {name: _inline(_class_slots(own)) for name, own in pool.class_slots.items()}
        fields["class_slots"] = _inline(slots)
    if pool.queue_age_ms:
        ages = {name: _duration(age_ms) for name, age_ms in pool.queue_age_ms.items()}
        fields["queue_age"] = _inline(ages)
    fields |= _long_jobs(pool.long_jobs)
    fields |= _limits(pool.limits)
    if pool.api is not None:
        fields["api"] = _inline(_api(pool.api))
    if pool.retry != RetryRule():
        fields["retry"] = _inline(_retry(pool.retry))
    if pool.memory_threshold_bytes:
        fields["gpu_memory_threshold"] = text(format_bytes(pool.memory_threshold_bytes))
    if pool.price != Price():
        fields["price"] = _inline(price_fields(pool.price))
    return fields


def _api(api: ApiLimits) -> Fields:
    """Its fields are called as in a file."""
    default = ApiLimits()
    return {
        key: str(getattr(api, key))
        for key in api.__struct_fields__
        if getattr(api, key) != getattr(default, key)
    }


def _long_jobs(rule: LongJobs | None) -> Fields:
    if rule is None:
        return {}
    fields = {"above": _duration(rule.above_ms), "max_running": str(rule.max_running)}
    return {"long_jobs": _inline(fields)}


def _class_slots(own: ClassSlots) -> Fields:
    """Its fields are called as in a file."""
    return {key: str(getattr(own, key)) for key in own.__struct_fields__ if getattr(own, key)}


def price_fields(price: Price) -> Fields:
    """Each price as a file says it, of those that there are."""
    micros = {
        "request": price.request_micros,
        "input_1000_tokens": price.input_micros,
        "output_1000_tokens": price.output_micros,
    }
    return {key: money(each) for key, each in micros.items() if each}


def _retry(rule: RetryRule) -> Fields:
    fields = {"budget_percent": str(rule.budget_percent)}
    return {"max_attempts": str(rule.attempts_max), **fields} if rule.attempts_max else fields


def _limits(limits: Limits) -> Fields:
    fields = {key: value for key, value in limit_fields(limits).items() if value}
    return {"limits": _inline(fields)} if fields else {}


def limit_fields(limits: Limits) -> Fields:
    """Each limit as a file says it; empty where there is none."""
    memory_bytes = limits.gpu_memory_bytes
    return {
        "slots": _slots(limits),
        "submissions_per_minute": _count(limits.submissions_per_minute),
        "submissions_burst": _count(limits.submissions_burst),
        "queue_length": _count(limits.queue_length),
        "queue_age": _duration(limits.queue_age_ms) if limits.queue_age_ms else "",
        "gpu_memory": text(format_bytes(memory_bytes)) if memory_bytes else "",
        "gpu_seconds_per_day": _count(limits.gpu_seconds_per_day),
        "money_per_day": money(limits.money_per_day_micros) if limits.money_per_day_micros else "",
    }


def _slots(limits: Limits) -> str:
    share = text(f"{limits.slots_percent}%") if limits.slots_percent else ""
    both = [each for each in (_count(limits.slots), share) if each]
    return _list(both) if len(both) == 2 else "".join(both)


def _count(number: int) -> str:
    return str(number) if number else ""


def _duration(duration_ms: int) -> str:
    return text(format_units(duration_ms))
