"""The way back: what a policy is written as is read as the same, and looks as a person's."""

from __future__ import annotations

import operator

from hypothesis import given
from hypothesis import strategies as st

from ledger.names import FlowId
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
from scheduling.policy_file import parse_policy
from scheduling.policy_text import format_policy
from tests.scheduling.test_policy_file import PROVIDER

names = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)
OWN_CLASS = "nightly-2"
class_names = st.sampled_from([*CLASSES, OWN_CLASS])
weights = st.integers(1, 1_000_000_000)
counts = st.integers(0, 1_000_000_000)
sizes = st.just(0) | st.builds(
    operator.mul, st.integers(1, 999), st.sampled_from([1_000, 1 << 20, 10**9, 1 << 40])
)
amounts = st.integers(0, 10**15)
ages_ms = st.integers(0, 3_650 * 86_400).map(lambda seconds: 1_000 * seconds)
printable = st.characters(exclude_categories=("C", "Z"))
submitters = st.text(printable, min_size=1, max_size=20)
lines = st.text(printable | st.just(" "), min_size=1, max_size=20)
name_patterns = st.from_regex(r"[a-z0-9*?\[\]!-]{1,20}", fullmatch=True)


def several(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(values, max_size=3).map(tuple)


limits = st.builds(
    Limits, slots=counts, slots_percent=st.integers(0, 100), submissions_per_minute=counts,
    submissions_burst=counts, queue_length=counts, queue_age_ms=ages_ms,
    gpu_memory_bytes=sizes,
    gpu_seconds_per_day=counts, money_per_day_micros=amounts,
).filter(lambda limits: limits.submissions_per_minute or not limits.submissions_burst)  # fmt: skip
organizations = st.builds(
    Organization, weight=weights, owner=st.just("") | lines, members=several(submitters),
    limits=limits,
)  # fmt: skip
rules = st.builds(
    AllowRule, submitters=several(submitters), organizations=several(name_patterns),
    pools=several(name_patterns), names=several(lines),
).filter(lambda rule: rule != AllowRule())  # fmt: skip
long_jobs = st.none() | st.builds(
    LongJobs, above_ms=ages_ms.filter(bool), max_running=counts.filter(bool)
)
classes = st.builds(
    WorkloadClass, weight=weights, allow=several(rules), demote_to=st.just("") | class_names,
    strict=st.booleans(), wait_target_ms=ages_ms, limits=limits, long_jobs=long_jobs,
    size_buckets=st.none() | st.builds(
        SizeBuckets, small_first=st.integers(1, 9),
        bounds_ms=st.sets(ages_ms.filter(bool), min_size=1, max_size=7).map(sorted).map(tuple),
    ),
)  # fmt: skip
shares_of_a_class = st.builds(
    ClassSlots, min=st.integers(0, 3), nominal=st.sampled_from([0, 3, 4]),
    max=st.sampled_from([0, 4, 9]),
).filter(lambda own: own != ClassSlots())  # fmt: skip
pools = st.builds(
    Pool, workers=several(name_patterns), discipline=st.sampled_from(DISCIPLINES),
    share=st.sampled_from(SHARES), class_weights=st.dictionaries(class_names, weights),
    class_slots=st.dictionaries(class_names, shares_of_a_class), long_jobs=long_jobs,
    queue_age_ms=st.dictionaries(class_names, ages_ms.filter(bool)), limits=limits,
    api=st.none() | st.builds(
        ApiLimits, requests_per_minute=counts, tokens_per_minute=counts, in_flight=counts,
        output_factor=st.integers(1, 1_000),
    ),
    memory_threshold_bytes=sizes,
    price=st.builds(Price, request_micros=amounts, input_micros=amounts, output_micros=amounts),
    retry=st.builds(RetryRule, attempts_max=counts, budget_percent=st.integers(0, 1_000)),
).filter(lambda pool: pool.api is not None or pool.price == Price())  # fmt: skip
flows = st.tuples(names, class_names, names).map(lambda parts: FlowId("/".join(parts)))


def is_agreed(policy: Policy) -> bool:
    """What a file refuses, and each Struct on its own cannot know."""
    members = [member for o in policy.organizations.values() for member in o.members]
    return (
        len(members) == len(set(members))
        and all(
            not (known.demote_to and policy.classes[known.demote_to].allow)
            and not (known.strict and not known.allow)
            and not (known.strict and not (known.limits.slots or known.limits.slots_percent))
            and not (known.strict and not (known.limits.queue_length or known.limits.queue_age_ms))
            for known in policy.classes.values()
        )
        and not any(
            pool.discipline == "fifo"
            and any(own.min or own.nominal for own in pool.class_slots.values())
            for pool in policy.pools.values()
        )
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    stated = draw(st.dictionaries(names, organizations, max_size=3))
    return Policy(
        organizations=stated,
        classes=draw(st.fixed_dictionaries(dict.fromkeys([*CLASSES, OWN_CLASS], classes))),
        pools=draw(st.dictionaries(names, pools, max_size=3)),
        flows=draw(st.dictionaries(flows, st.builds(
            FlowAgreement, wait_target_ms=ages_ms, limits=limits), max_size=2)),
        default_organization=draw(st.sampled_from(["", *stated])),
    )  # fmt: skip


@given(policies().filter(is_agreed))
def test_what_is_written_is_read_as_the_same(policy: Policy) -> None:
    assert parse_policy(format_policy(policy), source="p") == policy


def test_an_example_is_written_as_a_person_would() -> None:
    assert (
        format_policy(parse_policy(PROVIDER, source="p.yaml"))
        == """\
[classes.system]
weight = 6

[classes.interactive]
weight = 6

[classes.batch]
weight = 1

[pools.external-model-a]
discipline = "wfq"
share = "flow"
weights = {interactive = 6, batch = 1}
queue_age = {interactive = "45s", batch = "2h"}
api = {requests_per_minute = 900, tokens_per_minute = 180000, in_flight = 24}
retry = {max_attempts = 3, budget_percent = 10}
"""
    )
