"""Policy files: TOML or YAML text to a ``Policy``.

Owns the file's grammar (docs/POLICY.md shows all of it) and what of it must agree: each
message names the line, the key, what was expected there and, for a key or word that does
not exist, the nearest one that does. What a file leaves out is the Struct's own default, so
that the fact leaves it out too. Pure: text in, value out; ``scheduling.policy_text`` is the
way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ledger.errors import RequestError
from ledger.names import NAME, FlowId
from ledger.policy import (
    CLASSES,
    DISCIPLINES,
    SHARES,
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
    SizeBuckets,
    WorkloadClass,
)
from scheduling.policy_document import read_document
from scheduling.policy_table import NAME_FORM, Table, Value, nearest

Names = tuple[str, ...]

API_KEYS = (
    "requests_per_minute",
    "tokens_per_minute",
    "in_flight",
    "max_in_flight",
    "output_factor",
)

REJECT = "reject"
DEMOTE = "demote to "

FLOW_SPELT_OUT = "organization_id + workload_class"
BACKOFF = "exponential_with_jitter"

OUTPUT_FACTOR_MAX = 1_000
BOUNDS_MAX = 7
BUDGET_MAX_PERCENT = 1_000


def parse_policy(text: str, *, source: str) -> Policy:
    """The policy that ``text`` says; ``source`` is the file's name, with its suffix.

    Raises RequestError, one line, at the first fault.
    """
    document = read_document(text, source)
    if not document.data:
        raise RequestError(
            f"{source}: says nothing: expected at least one of organizations, classes, pools, "
            "flows, default_organization"
        )
    return _policy(Value(document, (), document.data).table())


def _policy(file: Table) -> Policy:
    organizations = {
        name: _organization(value)
        for name, value in _tables(file, "organizations", "a table: [organizations.NAME]").named()
    }
    _check_members(file, organizations)
    stated = _tables(file, "classes", "a table: [classes.NAME]").named()
    names = tuple(dict.fromkeys([*CLASSES, *(name for name, _ in stated)]))
    classes = dict(Policy().classes)
    for name, value in stated:
        weight = classes.get(name, WorkloadClass()).weight
        classes[name] = _workload_class(value, weight, names)
    for name, value in stated:
        _check_demotion(value, classes, classes[name].demote_to)
    pools = dict(_pools(file, names))
    flows = dict(
        _flow(key, value, names)
        for key, value in _tables(file, "flows", 'a table: [flows."ORG/CLASS/POOL"]').items()
    )
    default = file.find("default_organization")
    file.close()
    return Policy(
        organizations=organizations,
        classes=classes,
        pools=pools,
        flows=flows,
        default_organization="" if default is None else _known(default, organizations),
    )


def _tables(file: Table, kind: str, form: str) -> Table:
    found = file.find(kind)
    return file.inner(kind) if found is None else found.table(form)


def _known(value: Value, organizations: dict[str, Organization]) -> str:
    if not organizations:
        raise value.clash("the name of an organization of this file, which has none")
    return value.one_of(organizations)


# --- organizations


def _organization(value: Value) -> Organization:
    table = value.table()
    organization = Organization(
        weight=table.get(Organization().weight, Value.weight, "weight"),
        owner=table.get("", Value.text, "owner"),
        members=table.get((), Value.submitter_patterns, "members"),
        limits=table.get(Organization().limits, _limits, "limits"),
    )
    table.close()
    return organization


def _check_members(file: Table, organizations: dict[str, Organization]) -> None:
    """Nobody is a member twice, as far as two patterns are the same word for word."""
    first: dict[str, str] = {}
    for name, organization in organizations.items():
        for place, pattern in enumerate(organization.members):
            if pattern in first:
                known = file.at("organizations").table().at(name).table().at("members")
                raise known.entries()[place].clash(
                    f"each submitter in one organization: {pattern!r} is a member of "
                    f"{first[pattern]!r} already"
                )
            first[pattern] = name


# --- classes


def _workload_class(value: Value, weight: int, classes: Names) -> WorkloadClass:
    """``weight``: where it says none; ``classes``: all that there are."""
    table = value.table()
    read = WorkloadClass(
        weight=table.get(weight, Value.weight, "weight"),
        allow=table.get((), _allow_rules, "allow"),
        demote_to=table.get("", partial(_demote_to, classes=classes), "otherwise"),
        strict=table.get(False, Value.flag, "strict"),
        wait_target_ms=table.get(0, Value.duration_ms, "wait_target"),
        quantum_ms=table.get(0, Value.duration_ms, "quantum"),
        size_buckets=table.get(None, _size_buckets, "size_buckets"),
        long_jobs=table.get(None, _long_jobs, "long_jobs"),
        limits=table.get(WorkloadClass().limits, _limits, "limits"),
    )
    table.close()
    lacking = _lacks_of_strict(read) if read.strict else []
    if lacking:
        raise table.at("strict").clash(
            "false, or a limit on running slots, a limit on queue length or age and an allow "
            f"list beside it, as it goes before all others; not there: {', '.join(lacking)}"
        )
    return read


def _lacks_of_strict(read: WorkloadClass) -> list[str]:
    """Without these a strict class could keep all others from ever being served."""
    limits = read.limits
    has = {
        "limits.slots": limits.slots or limits.slots_percent,
        "limits.queue_length or limits.queue_age": limits.queue_length or limits.queue_age_ms,
        "allow": read.allow,
    }
    return [name for name, there in has.items() if not there]


def _size_buckets(value: Value) -> SizeBuckets:
    table = value.table()
    bounds = table.find("bounds")
    if bounds is None:
        raise table.missing("'bounds' in it")
    rule = SizeBuckets(
        bounds_ms=tuple(each.duration_ms() for each in bounds.entries("a list of times")),
        small_first=table.get(SizeBuckets().small_first, Value.count, "small_first"),
    )
    table.close()
    if not 0 < len(rule.bounds_ms) <= BOUNDS_MAX or list(rule.bounds_ms) != sorted(
        set(rule.bounds_ms)
    ):
        raise bounds.clash(f"1 to {BOUNDS_MAX} times, each longer than the one before")
    return rule


def _long_jobs(value: Value) -> LongJobs:
    table = value.table()
    rule = LongJobs(
        above_ms=table.get(0, Value.duration_ms, "above"),
        max_running=table.get(0, Value.count, "max_running"),
    )
    table.close()
    if not rule.above_ms or not rule.max_running:
        raise value.clash("both 'above' and 'max_running'")
    return rule


def _allow_rules(value: Value) -> tuple[AllowRule, ...]:
    return tuple(_allow_rule(each) for each in value.entries("a list of tables"))


def _allow_rule(value: Value) -> AllowRule:
    table = value.table()
    rule = AllowRule(
        submitters=table.get((), Value.submitter_patterns, "submitters"),
        organizations=table.get((), Value.name_patterns, "organizations"),
        pools=table.get((), Value.name_patterns, "pools"),
        names=table.get((), Value.text_patterns, "names"),
    )
    table.close()
    if rule == AllowRule():
        raise table.missing("at least one of submitters, organizations, pools, names")
    return rule


def _demote_to(value: Value, classes: Names) -> str:
    forms = [REJECT, *(DEMOTE + name for name in classes)]
    return value.one_of(forms).removeprefix(REJECT).removeprefix(DEMOTE)


def _check_demotion(value: Value, classes: dict[str, WorkloadClass], demote_to: str) -> None:
    """A job is demoted to a class that it may have: one that is open to everybody."""
    if demote_to and classes[demote_to].allow:
        otherwise = value.table().at("otherwise")
        raise otherwise.clash(f"a class that everybody may have: {demote_to!r} has an 'allow'")


# --- pools


def _pools(file: Table, classes: Names) -> Iterator[tuple[str, Pool]]:
    """Pools as tables by name, or as a list of tables of which each says its name."""
    found = file.find("pools")
    if found is not None and isinstance(found.plain, list):
        yield from _listed_pools(found, classes)
    elif found is not None:
        for name, value in found.table("a table [pools.NAME], or a list").named():
            yield name, _pool(value.table(), classes)


def _listed_pools(value: Value, classes: Names) -> Iterator[tuple[str, Pool]]:
    names = set()
    for each in value.entries():
        table = each.table()
        named = table.find("name", "provider")
        if named is None:
            raise table.missing("a 'name', or a 'provider'")
        name = named.plain
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise named.fault(NAME_FORM)
        if name in names:
            raise named.clash(f"each pool once: {name!r} stands above already")
        names.add(name)
        yield name, _pool(table, classes, is_provider="provider" in table)


def _pool(table: Table, classes: Names, *, is_provider: bool = False) -> Pool:
    """``is_provider``: the pool stands for an external service, whatever else it says."""
    limits, api = _pool_limits(table)
    scheduler = table.find("scheduler")
    order = table if scheduler is None else scheduler.table()
    pool = Pool(
        workers=table.get((), Value.name_patterns, "workers"),
        discipline=order.get("wfq", _discipline, "discipline", "algorithm"),
        share=order.get("organization", _share, "share", "flow"),
        class_weights=order.get({}, partial(_class_weights, classes=classes), "weights"),
        class_slots=table.get({}, partial(_class_slots, classes=classes), "class_slots"),
        queue_age_ms=_queue_ages(order, classes),
        long_jobs=table.get(None, _long_jobs, "long_jobs"),
        limits=limits,
        api=ApiLimits() if api is None and is_provider else api,
        retry=table.get(Pool().retry, _retry, "retry"),
        memory_threshold_bytes=table.get(0, Value.size_bytes, "gpu_memory_threshold"),
        price=table.get(Pool().price, _price, "price"),
    )
    order.close()
    table.close()
    if pool.discipline == "fifo" and any(
        own.min or own.nominal for own in pool.class_slots.values()
    ):
        raise table.at("class_slots").clash(
            "only 'max' in it, or another discipline: fifo asks for nothing but arrival"
        )
    if pool.api is None and "price" in table:
        raise table.at("price").clash("'api' beside it: what has a price is a call of a service")
    return pool


def _discipline(value: Value) -> str:
    return value.one_of(DISCIPLINES)


def _share(value: Value) -> str:
    """As ``share`` says it, or spelt out under ``flow``."""
    if value.path[-1] == "share":
        return value.one_of(SHARES)
    if not isinstance(value.plain, str) or " ".join(value.plain.split()) != FLOW_SPELT_OUT:
        raise value.fault(FLOW_SPELT_OUT)
    return "flow"


def _class_weights(value: Value, classes: Names) -> dict[str, int]:
    return {name: each.weight() for name, each in value.table().named(classes)}


def _class_slots(value: Value, classes: Names) -> dict[str, ClassSlots]:
    return {name: _slots_of_class(each) for name, each in value.table().named(classes)}


def _slots_of_class(value: Value) -> ClassSlots:
    table = value.table()
    read = ClassSlots(
        min=table.get(0, Value.count, "min"),
        nominal=table.get(0, Value.count, "nominal"),
        max=table.get(0, Value.count, "max"),
    )
    table.close()
    said = [slots for slots in (read.min, read.nominal, read.max) if slots]
    if not said:
        raise value.clash("at least one of min, nominal, max")
    if said != sorted(said):
        raise value.clash("min, nominal and max in this order of size")
    return read


def _queue_ages(order: Table, classes: Names) -> dict[str, int]:
    found = order.find("queue_age", "max_queue_age_seconds")
    if found is None:
        return {}
    in_seconds = found.path[-1] == "max_queue_age_seconds"
    read = Value.seconds_ms if in_seconds else Value.duration_ms
    return {name: read(each) for name, each in found.table().named(classes)}


def _pool_limits(table: Table) -> tuple[Limits, ApiLimits | None]:
    """What a service takes stands under ``api``, or beside the other limits."""
    found = table.find("limits")
    api = table.get(None, lambda value: _api(value.table(), is_whole=True), "api")
    if found is None:
        return Pool().limits, api
    limits = found.table()
    own = _limits_of(limits)
    beside = _api(limits, is_whole=False)
    limits.close()
    if beside is not None and api is not None:
        raise table.at("api").clash("the limits of the service here or under 'limits', not in both")
    return own, api if beside is None else beside


def _api(table: Table, *, is_whole: bool) -> ApiLimits | None:
    """``is_whole``: the table holds nothing else; else None where it says none of it."""
    says_any = is_whole or any(key in table for key in API_KEYS)
    read = ApiLimits(
        requests_per_minute=table.get(0, Value.count, "requests_per_minute"),
        tokens_per_minute=table.get(0, Value.count, "tokens_per_minute"),
        in_flight=table.get(0, Value.count, "in_flight", "max_in_flight"),
        output_factor=table.get(ApiLimits().output_factor, _output_factor, "output_factor"),
    )
    if is_whole:
        table.close()
    return read if says_any else None


def _output_factor(value: Value) -> int:
    return value.count(1, OUTPUT_FACTOR_MAX)


def _price(value: Value) -> Price:
    table = value.table()
    price = Price(
        request_micros=table.get(0, Value.money_micros, "request"),
        input_micros=table.get(0, Value.money_micros, "input_1000_tokens"),
        output_micros=table.get(0, Value.money_micros, "output_1000_tokens"),
    )
    table.close()
    return price


def _retry(value: Value) -> RetryRule:
    table = value.table()
    rule = RetryRule(
        attempts_max=table.get(0, Value.count, "max_attempts"),
        budget_percent=table.get(
            RetryRule().budget_percent, _budget_percent, "budget_percent", "budget_per_flow_percent"
        ),
    )
    table.get("", lambda backoff: backoff.one_of([BACKOFF]), "backoff")
    table.close()
    return rule


def _budget_percent(value: Value) -> int:
    return value.count(0, BUDGET_MAX_PERCENT)


# --- flows and limits


def _flow(key: str, value: Value, classes: Names) -> tuple[FlowId, FlowAgreement]:
    parts = key.split("/")
    form = 'a flow: "ORGANIZATION/CLASS/POOL", three names'
    if len(parts) != 3 or not all(NAME.fullmatch(part) for part in parts):
        raise value.clash(form)
    if parts[1] not in classes:
        near = nearest(parts[1], classes)
        raise value.clash(f"{form}, the second one of {', '.join(classes)}{near}")
    table = value.table()
    agreement = FlowAgreement(
        wait_target_ms=table.get(0, Value.duration_ms, "wait_target"),
        limits=table.get(FlowAgreement().limits, _limits, "limits"),
    )
    table.close()
    return FlowId(key), agreement


def _limits(value: Value) -> Limits:
    table = value.table()
    limits = _limits_of(table)
    table.close()
    return limits


def _limits_of(table: Table) -> Limits:
    slots, slots_percent = table.get((0, 0), Value.slots, "slots")
    limits = Limits(
        slots=slots,
        slots_percent=slots_percent,
        submissions_per_minute=table.get(0, Value.count, "submissions_per_minute"),
        submissions_burst=table.get(0, Value.count, "submissions_burst"),
        queue_length=table.get(0, Value.count, "queue_length"),
        queue_age_ms=table.get(0, Value.duration_ms, "queue_age"),
        gpu_memory_bytes=table.get(0, Value.size_bytes, "gpu_memory"),
        gpu_seconds_per_day=table.get(0, Value.count, "gpu_seconds_per_day"),
        money_per_day_micros=table.get(0, Value.money_micros, "money_per_day"),
    )
    if limits.submissions_burst and not limits.submissions_per_minute:
        raise table.at("submissions_burst").clash("'submissions_per_minute' beside it")
    return limits
