"""What policy files say, and what is said of those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.errors import RequestError
from ledger.names import FlowId
from ledger.policy import (
    CLASSES,
    AllowRule,
    ApiLimits,
    ClassSlots,
    FlowAgreement,
    Limits,
    Organization,
    Policy,
    Pool,
    RetryRule,
    WorkloadClass,
)
from scheduling.policy_file import parse_policy

TOML = """\
default_organization = "guests"

[organizations.astro]
weight = 2.5
owner = "Ada, ext. 12"
members = ["ada", "*@telescope"]
limits = {slots = [4, "50%"], submissions_per_minute = 10, submissions_burst = 30}

[organizations.guests]

[classes.system]
strict = true
limits = {slots = "10%", queue_age = "10m"}
allow = [{submitters = ["root"], names = ["backup *"]}]
otherwise = "demote to batch"

[classes.interactive]
wait_target = "90s"

[pools.h100]
workers = ["node1", "node2-gpu*"]
discipline = "sfq"
weights = {interactive = 3}
queue_age = {batch = "2h"}
limits = {queue_length = 100}

[pools.gpt]
share = "flow"
api = {requests_per_minute = 900, in_flight = 24, output_factor = 3}
retry = {max_attempts = 3, budget_percent = 20}

[flows."astro/batch/h100"]
wait_target = "1d"
limits = {queue_length = 5}
"""

YAML = """\
default_organization: guests
organizations:
  astro:
    weight: 2.5
    owner: Ada, ext. 12
    members: [ada, "*@telescope"]
    limits: {slots: [4, 50%], submissions_per_minute: 10, submissions_burst: 30}
  guests: {}
classes:
  system:
    strict: yes
    limits: {slots: 10%, queue_age: 10m}
    allow:
      - submitters: [root]
        names: [backup *]
    otherwise: demote to batch
  interactive: {wait_target: 90s}
pools:
  - name: h100
    workers: [node1, node2-gpu*]
    scheduler:
      algorithm: sfq
      weights: {interactive: 3}
      queue_age: {batch: 2h}
    limits: {queue_length: 100}
  - provider: gpt
    share: flow
    limits: {requests_per_minute: 900, max_in_flight: 24, output_factor: 3}
    retry: {max_attempts: 3, budget_per_flow_percent: 20}
flows:
  astro/batch/h100: {wait_target: 1d, limits: {queue_length: 5}}
"""

SAID = Policy(
    default_organization="guests",
    organizations={
        "astro": Organization(
            weight=2_500,
            owner="Ada, ext. 12",
            members=("ada", "*@telescope"),
            limits=Limits(
                slots=4, slots_percent=50, submissions_per_minute=10, submissions_burst=30
            ),
        ),
        "guests": Organization(),
    },
    classes={
        "system": WorkloadClass(
            weight=6_000,
            strict=True,
            limits=Limits(slots_percent=10, queue_age_ms=600_000),
            allow=(AllowRule(submitters=("root",), names=("backup *",)),),
            demote_to="batch",
        ),
        "interactive": WorkloadClass(weight=6_000, wait_target_ms=90_000),
        "batch": WorkloadClass(),
    },
    pools={
        "h100": Pool(
            workers=("node1", "node2-gpu*"),
            discipline="sfq",
            class_weights={"interactive": 3_000},
            queue_age_ms={"batch": 7_200_000},
            limits=Limits(queue_length=100),
        ),
        "gpt": Pool(
            share="flow",
            api=ApiLimits(requests_per_minute=900, in_flight=24, output_factor=3),
            retry=RetryRule(attempts_max=3, budget_percent=20),
        ),
    },
    flows={
        FlowId("astro/batch/h100"): FlowAgreement(
            wait_target_ms=86_400_000, limits=Limits(queue_length=5)
        )
    },
)

PROVIDER = """\
pools:
  - provider: external-model-a
    limits: {requests_per_minute: 900, tokens_per_minute: 180000, max_in_flight: 24}
    scheduler:
      algorithm: wfq
      flow: organization_id + workload_class
      weights: {interactive: 6, batch: 1}
      max_queue_age_seconds: {interactive: 45, batch: 7200}
    retry: {max_attempts: 3, budget_per_flow_percent: 10, backoff: exponential_with_jitter}
"""


@pytest.mark.parametrize(
    ("text", "source"), [(TOML, "p.toml"), (YAML, "p.yaml"), (YAML, "p.yml"), (TOML, "p"),
                         (YAML, "p")],
)  # fmt: skip
def test_both_languages_say_the_same(text: str, source: str) -> None:
    assert parse_policy(text, source=source) == SAID


def test_a_pool_that_spells_out_its_flow_is_a_service_that_shares_by_flow() -> None:
    assert parse_policy(PROVIDER, source="p.yaml") == Policy(
        pools={
            "external-model-a": Pool(
                discipline="wfq",
                share="flow",
                class_weights={"interactive": 6_000, "batch": 1_000},
                queue_age_ms={"interactive": 45_000, "batch": 7_200_000},
                api=ApiLimits(requests_per_minute=900, tokens_per_minute=180_000, in_flight=24),
                retry=RetryRule(attempts_max=3, budget_percent=10),
            )
        }
    )


@pytest.mark.parametrize(
    "change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n"), lambda t: t.rstrip("\n")]
)
def test_a_byte_order_mark_and_other_line_ends_change_nothing(change: Callable[[str], str]) -> None:
    assert parse_policy(change(TOML), source="p.toml") == SAID
    assert parse_policy(change(YAML), source="p.yaml") == SAID


def test_a_class_that_is_not_named_keeps_its_weight() -> None:
    text = "[classes.interactive]\nwait_target = '5m'\n[classes.batch]\nweight = 0.5\n"
    classes = parse_policy(text, source="p").classes
    assert [classes[name].weight for name in CLASSES] == [6_000, 6_000, 500]


def test_a_provider_is_a_service_also_without_limits() -> None:
    pools = parse_policy("pools:\n- provider: x\n- name: y\n", source="p.yaml").pools
    assert (pools["x"].api, pools["y"].api) == (ApiLimits(), None)


WEIGHT = "expected a number from 0.001 to 1000000 with at most three decimals, not"
MONEY = "expected a number from 0.000001 to 1000000000 with at most six decimals, not"
COUNT = "expected a whole number from 1 to 1000000000"
ORG = "[organizations.a]\n"
TIME = "expected a time such as 90s, 10m, 2h or 1d, not"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": says nothing: expected at least one of organizations, classes, pools, flows, "
         "default_organization"),
        ("# later\n", ": says nothing: expected at least one of organizations, classes, pools, "
         "flows, default_organization"),
        ("[organisations.a]\nweight = 1", ":1: organisations: expected one of organizations, "
         "classes, pools, flows, default_organization; did you mean 'organizations'?"),
        ("\n[organizations.a]\nwieght = 1", ":3: organizations.a.wieght: expected one of weight, "
         "owner, members, limits; did you mean 'weight'?"),
        ("[organizations.a]\nweight = 1\nweight = 2\n", ":3: not TOML: cannot overwrite a value: "
         "'weight = 2'"),
        ("[organizations.a]\n\n[organizations.a]\n", ":3: not TOML: cannot declare "
         "('organizations', 'a') twice: '[organizations.a]'"),
        ("[pools.x\n", ":1: not TOML: expected ']' at the end of a table declaration: '[pools.x'"),
        (ORG + "weight = 0", f":2: organizations.a.weight: {WEIGHT} 0"),
        (ORG + "weight = -1", f":2: organizations.a.weight: {WEIGHT} -1"),
        (ORG + "weight = 1000001", f":2: organizations.a.weight: {WEIGHT} 1000001"),
        (ORG + "weight = 0.0001", f":2: organizations.a.weight: {WEIGHT} 0.0001"),
        (ORG + "weight = true", f":2: organizations.a.weight: {WEIGHT} true"),
        (ORG + "weight = nan", f":2: organizations.a.weight: {WEIGHT} NaN"),
        (ORG + "weight = inf", f":2: organizations.a.weight: {WEIGHT} Infinity"),
        (ORG + "weight = '4'", f":2: organizations.a.weight: {WEIGHT} '4'"),
        (ORG + "owner = ''", ":2: organizations.a.owner: expected a text of 1 to 200 characters "
         "on one line, not ''"),
        (ORG + 'owner = "a\\nb"', ":2: organizations.a.owner: expected a text of 1 to 200 "
         "characters on one line, not 'a\\nb'"),
        (ORG + "members = 'ada'", ":2: organizations.a.members: expected a list of submitters "
         "such as \"ada\", \"ada@laptop\" or \"*@laptop\", not 'ada'"),
        (ORG + "members = [\n'ada',\n'b c']", ":2: organizations.a.members[2]: expected a list of "
         "submitters such as \"ada\", \"ada@laptop\" or \"*@laptop\", not 'b c'"),
        ("[organizations]\na = 4", ":2: organizations.a: expected a table, not 4"),
        ("[organizations.\"A b\"]", ":1: organizations.'A b': expected a name of 1 to 63 "
         "characters of a-z, 0-9 and '-'"),
        ("organizations = 1", ":1: organizations: expected a table: [organizations.NAME], not 1"),
        (ORG + "members = ['x']\n# b\n[organizations.b]\nmembers = ['y', 'x']",
         ":5: organizations.b.members[2]: expected each submitter in one organization: 'x' is a "
         "member of 'a' already"),
        ("default_organization = 'gusts'\n[organizations.guests]", ":1: default_organization: "
         "expected one of guests, not 'gusts'; did you mean 'guests'?"),
        ("default_organization = 'x'", ":1: default_organization: expected the name of an "
         "organization of this file, which has none"),
        ("[classes.batch]\nwait_target = 90", f":2: classes.batch.wait_target: {TIME} 90"),
        ("[classes.batch]\nwait_target = '0s'", f":2: classes.batch.wait_target: {TIME} '0s'"),
        ("[classes.batch]\nwait_target = '-1s'", f":2: classes.batch.wait_target: {TIME} '-1s'"),
        ("[classes.batch]\nwait_target = 10:00:00", f":2: classes.batch.wait_target: {TIME} "
         "10:00:00"),
        ("[classes.batch]\nallow = [{}]", ":2: classes.batch.allow[1]: expected at least one of "
         "submitters, organizations, pools, names"),
        ("[classes.batch]\notherwise = 'demote to bach'", ":2: classes.batch.otherwise: expected "
         "one of reject, demote to system, demote to interactive, demote to batch, not "
         "'demote to bach'; did you mean 'demote to batch'?"),
        ("[classes.interactive]\nallow = [{names = ['x']}]\notherwise = 'demote to system'\n"
         "[classes.system]\nallow = [{names = ['y']}]", ":3: classes.interactive.otherwise: "
         "expected a class that everybody may have: 'system' has an 'allow'"),
        ("[classes.batch]\nstrict = 1", ":2: classes.batch.strict: expected true or false, not 1"),
        (ORG + "limits = {slots = 0}", f":2: organizations.a.limits.slots: {COUNT}, not 0; leave "
         "it out for no limit"),
        (ORG + "limits = {slots = -3}", f":2: organizations.a.limits.slots: {COUNT}, not -3"),
        (ORG + "limits = {slots = true}", f":2: organizations.a.limits.slots: {COUNT}, not true"),
        (ORG + "limits = {slots = 1.5}", f":2: organizations.a.limits.slots: {COUNT}, not 1.5"),
        (ORG + "limits = {slots = '101%'}", ":2: organizations.a.limits.slots: expected a number "
         "of slots, a share of the pool such as \"50%\", or a list of both, not '101%'"),
        (ORG + "limits = {slots = []}", ":2: organizations.a.limits.slots: expected a number "
         "of slots, a share of the pool such as \"50%\", or a list of both, not a list"),
        (ORG + "limits = {submissions_burst = 3}", ":2: organizations.a.limits.submissions_burst: "
         "expected 'submissions_per_minute' beside it"),
        (ORG + "limits = {queue_lenght = 3}", ":2: organizations.a.limits.queue_lenght: expected "
         "one of slots, submissions_per_minute, submissions_burst, queue_length, queue_age, "
         "gpu_memory, gpu_seconds_per_day, money_per_day; did you mean 'queue_length'?"),
        (ORG + "limits = {gpu_memory = '40'}", ":2: organizations.a.limits.gpu_memory: expected a "
         "size such as 40G, 40GB or 40GiB, not '40'"),
        (ORG + "limits = {gpu_seconds_per_day = '2h'}", ":2: organizations.a.limits."
         f"gpu_seconds_per_day: {COUNT}, not '2h'"),
        (ORG + "limits = {money_per_day = 0.0000001}", ":2: organizations.a.limits.money_per_day: "
         f"{MONEY} 1E-7"),
        (ORG + "limits = {money_per_day = 0}", ":2: organizations.a.limits.money_per_day: "
         f"{MONEY} 0"),
        ("[pools.x]\nprice = {request = 1}", ":2: pools.x.price: expected 'api' beside it: what "
         "has a price is a call of a service"),
        ("[pools.x]\napi = {}\nprice = {tokens = 1}", ":3: pools.x.price.tokens: expected one of "
         "request, input_1000_tokens, output_1000_tokens"),
        ("[pools.x]\ndiscipline = 'lifo'", ":2: pools.x.discipline: expected one of wfq, sfq, "
         "fifo, strict, not 'lifo'; did you mean 'fifo'?"),
        ("[pools.x]\nworkers = 'n1'", ":2: pools.x.workers: expected a list of names, or patterns "
         "such as \"node1-*\", not 'n1'"),
        ("[pools.x]\nworkers = ['N1']", ":2: pools.x.workers[1]: expected a list of names, or "
         "patterns such as \"node1-*\", not 'N1'"),
        ("[pools.x]\nweights = {bach = 1}", ":2: pools.x.weights.bach: expected one of system, "
         "interactive, batch; did you mean 'batch'?"),
        ("[pools.x]\napi = {in_flight = 1}\nlimits = {in_flight = 2}", ":2: pools.x.api: expected "
         "the limits of the service here or under 'limits', not in both"),
        ("[pools.x]\napi = {in_flight = 1, max_in_flight = 2}", ":2: pools.x.api.max_in_flight: "
         "expected either 'in_flight' or 'max_in_flight': they are the same"),
        ("[pools.x]\nretry = {backoff = 'none'}", ":2: pools.x.retry.backoff: expected one of "
         "exponential_with_jitter, not 'none'"),
        ("[flows.'a/batch']\n", ":1: flows.'a/batch': expected a flow: "
         '"ORGANIZATION/CLASS/POOL", three names'),
        ("[flows.'a/b/c']\n", ":1: flows.'a/b/c': expected a flow: "
         '"ORGANIZATION/CLASS/POOL", three names, the second one of system, interactive, batch'),
    ],
)  # fmt: skip
def test_a_fault_names_line_key_and_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(text, source="p.toml")
    assert str(caught.value) == "p.toml" + says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": says nothing: expected at least one of organizations, classes, pools, flows, "
         "default_organization"),
        ("organizations:\n", ":1: organizations: expected a table: [organizations.NAME], not "
         "nothing"),
        ("organizations:\n  a: {weight: 1}\n  a: {weight: 2}\n", ":3: organizations.a: expected "
         "once; it stands on line 2 already"),
        ("organizations:\n\ta: {}\n", ":2: not YAML: found character '\\t' that cannot start any "
         "token; indent with spaces"),
        ("organizations:\n  a: &x {}\n  b: *x\n", ":2: not YAML: anchors and aliases are not "
         "read: write 'x' out"),
        ("organizations:\n  a: !!map {}\n", ":2: not YAML: tags are not read: leave "
         "'tag:yaml.org,2002:map' out"),
        ("organizations: {}\n---\npools: {}\n", ":2: not YAML: but found another document"),
        ("? [a]\n: 1\n", ":1: not YAML: a key must be a word"),
        ("- a\n", ":1: expected a table, not a list"),
        ("organizations:\n  a:\n    weight: .nan\n", f":3: "
         f"organizations.a.weight: {WEIGHT} '.nan'"),
        ("organizations:\n  a:\n    weight: 010\n", f":3: organizations.a.weight: {WEIGHT} '010'"),
        ("organizations:\n  a:\n    weight: yes\n", f":3: organizations.a.weight: {WEIGHT} true"),
        ("organizations:\n  a:\n    members: [x]\n    members: [y]\n", ":4: "
         "organizations.a.members: expected once; it stands on line 3 already"),
        ("pools:\n  - workers: [a]\n", ":2: pools[1]: expected a 'name', or a 'provider'"),
        ("pools:\n  - name: x\n  - name: x\n", ":3: pools[2].name: expected each pool once: 'x' "
         "stands above already"),
        ("pools:\n  - name: X\n", ":2: pools[1].name: expected a name of 1 to 63 characters of "
         "a-z, 0-9 and '-', not 'X'"),
        ("pools:\n  - name: x\n    scheduler:\n      algoritm: wfq\n", ":4: "
         "pools[1].scheduler.algoritm: expected one of discipline, algorithm, share, flow, "
         "weights, queue_age, max_queue_age_seconds; did you mean 'algorithm'?"),
        ("pools:\n  - name: x\n    scheduler: {flow: user}\n", ":3: pools[1].scheduler.flow: "
         "expected organization_id + workload_class, not 'user'"),
        ("pools:\n  - name: x\n    scheduler: {max_queue_age_seconds: {batch: 1.5}}\n", ":3: "
         "pools[1].scheduler.max_queue_age_seconds.batch: expected a whole number from 1 to "
         "315360000, not 1.5"),
    ],
)  # fmt: skip
def test_a_fault_in_yaml_names_line_key_and_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(text, source="p.yaml")
    assert str(caught.value) == "p.yaml" + says


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("class_slots = {bach = {max = 7}}", ".bach: expected one of system, interactive, batch; "
         "did you mean 'batch'?"),
        ("class_slots = {batch = {mx = 7}}", ".batch.mx: expected one of min, nominal, max; did "
         "you mean 'max'?"),
        ("class_slots = {batch = {}}", ".batch: expected at least one of min, nominal, max"),
        ("class_slots = {batch = {nominal = 3, max = 2}}", ".batch: expected min, nominal and max "
         "in this order of size"),
        ("class_slots = {batch = {max = 0}}", ".batch.max: expected a whole number from 1 to "
         "1000000000, not 0; leave it out for no limit"),
        ("discipline = 'fifo'\nclass_slots = {batch = {min = 1}}", ": expected only 'max' in it, "
         "or another discipline: fifo asks for nothing but arrival"),
    ],
)  # fmt: skip
def test_wrong_shares_of_classes_are_refused(pool: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(f"[pools.p]\n{pool}\n", source="p.toml")
    line = 1 + len(pool.splitlines())
    assert str(caught.value) == f"p.toml:{line}: pools.p.class_slots{says}"


def test_a_file_may_define_further_classes_and_say_of_them_what_it_may_of_others() -> None:
    policy = parse_policy(
        """
        [classes.system]
        allow = [{submitters = ["root"]}]
        otherwise = "demote to nightly"
        [classes.nightly]
        quantum = "1h"
        [pools.p]
        weights = {nightly = 2}
        class_slots = {nightly = {max = 1}}
        queue_age = {nightly = "1h"}
        [flows."a/nightly/p"]
        wait_target = "1d"
        """,
        source="p.toml",
    )
    assert list(policy.classes) == ["system", "interactive", "batch", "nightly"]
    assert policy.classes["nightly"] == WorkloadClass(quantum_ms=3_600_000)
    assert policy.classes["system"].demote_to == "nightly"
    pool = policy.pools["p"]
    assert pool.class_weights == {"nightly": 2_000}
    assert pool.class_slots == {"nightly": ClassSlots(max=1)}
    assert pool.queue_age_ms == {"nightly": 3_600_000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[flows.'a/nightli/p']", "flows.'a/nightli/p': expected a flow: "
         '"ORGANIZATION/CLASS/POOL", three names, the second one of system, interactive, batch, '
         "nightly; did you mean 'nightly'?"),
        ("[pools.p]\nweights = {nightli = 1}", "pools.p.weights.nightli: expected one of system, "
         "interactive, batch, nightly; did you mean 'nightly'?"),
        ("[classes.Big]", "classes.Big: expected a name of 1 to 63 characters of a-z, 0-9 and '-'"),
    ],
)  # fmt: skip
def test_a_class_that_there_is_not_names_the_nearest(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(f"[classes.nightly]\n{text}\n", source="p.toml")
    assert str(caught.value) == f"p.toml:{1 + len(text.splitlines())}: {says}"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("long_jobs = {above = '1h'}", "long_jobs: expected both 'above' and 'max_running'"),
        ("long_jobs = {above = '1h', max_runing = 1}", "long_jobs.max_runing: expected one of "
         "above, max_running; did you mean 'max_running'?"),
        ("size_buckets = {small_first = 2}", "size_buckets: expected 'bounds' in it"),
        ("size_buckets = {bounds = []}", "size_buckets.bounds: expected 1 to 7 times, each longer "
         "than the one before"),
        ("size_buckets = {bounds = ['2m', '1m']}", "size_buckets.bounds: expected 1 to 7 times, "
         "each longer than the one before"),
        ("size_buckets = {bounds = ['1m'], small_first = 0}", "size_buckets.small_first: expected "
         "a whole number from 1 to 1000000000, not 0; leave it out for no limit"),
    ],
)  # fmt: skip
def test_wrong_rules_of_sizes_are_refused(rule: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(f"[classes.batch]\n{rule}\n", source="p.toml")
    assert str(caught.value) == f"p.toml:2: classes.batch.{says}"


def test_a_text_that_is_neither_says_so_of_both() -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy("[x", source="p")
    assert str(caught.value) == (
        "p: line 1, not TOML: expected ']' at the end of a table declaration: '[x'; "
        "line 1, not YAML: expected ',' or ']', but got '<stream end>'"
    )


@pytest.mark.parametrize(("text", "source"), [("a = " + "[" * 9_999, "p.toml"),
                                              ("[" * 9_999 + "]" * 9_999, "p.yaml")])  # fmt: skip
def test_what_is_nested_too_deeply_is_refused(text: str, source: str) -> None:
    with pytest.raises(RequestError, match="nested too deeply"):
        parse_policy(text, source=source)


@pytest.mark.parametrize(
    ("limits", "allow", "lacks"),
    [
        ("{}", False, "limits.slots, limits.queue_length or limits.queue_age, allow"),
        ("{slots = 1}", False, "limits.queue_length or limits.queue_age, allow"),
        ("{slots = '9%', queue_length = 1}", False, "allow"),
        ("{queue_age = '1h'}", True, "limits.slots"),
        ("{slots = 2}", True, "limits.queue_length or limits.queue_age"),
    ],
)
def test_a_strict_class_needs_all_three(limits: str, allow: bool, lacks: str) -> None:
    rules = "allow = [{submitters = ['root']}]\n" * allow
    text = f"[classes.system]\nlimits = {limits}\n{rules}strict = true\n"
    with pytest.raises(RequestError) as caught:
        parse_policy(text, source="p.toml")
    assert str(caught.value) == (
        f"p.toml:{4 if allow else 3}: classes.system.strict: expected false, or a limit on "
        "running slots, a limit on queue length or age and an allow list beside it, as it goes "
        f"before all others; not there: {lacks}"
    )
