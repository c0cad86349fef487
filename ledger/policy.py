"""The agreement between organizations, as data: shares, classes, pools and limits.

Owns the Structs that a ``policy`` fact carries and that the fold needs, and what follows
from them alone: weights, standing, the limits that hold for a job. Reading and checking a
policy file is ``scheduling.policy_file``. Weights are integers in thousandths, so that
``0.5`` is exact. A limit of 0 is none. Patterns are shell patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import msgspec

from ledger.names import FlowId, as_name, flow_parts

WEIGHT_ONE = 1_000
"""The weight 1."""

CLASSES = ("system", "interactive", "batch")
"""The workload classes that there always are, in the order in which ``strict`` serves them;
it serves those of a policy after them."""

DISCIPLINES = ("wfq", "sfq", "fifo", "strict")

SHARES = ("organization", "flow")

RETRY_BUDGET_PERCENT = 10


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one organization, class, flow or pool may have at once or a minute."""

    slots: int = 0
    """Running at once: of an organization or class in all pools together."""
    slots_percent: int = 0
    """Running at once, of the slots that serve a pool; of each pool on its own."""
    submissions_per_minute: int = 0
    submissions_burst: int = 0
    """Submissions at once before the rate holds them; 0: one minute's."""
    queue_length: int = 0
    queue_age_ms: int = 0
    """A job that waited longer without ever being started is expired."""
    gpu_memory_bytes: int = 0
    """GPU memory that running jobs asked for, all their GPUs together."""
    gpu_seconds_per_day: int = 0
    """Within 24 hours, as ``ledger.daily`` counts; of whom it names in all pools together."""
    money_per_day_micros: int = 0
    """The same, of calls of external services."""


class Organization(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``weight`` in thousandths."""

    weight: int = WEIGHT_ONE
    owner: str = ""
    """Whom to ask."""
    members: tuple[str, ...] = ()
    """Submitters, as ``user`` or ``user@host``, or patterns of either."""
    limits: Limits = Limits()


class AllowRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs that may have a class: every list that is not empty must match."""

    submitters: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def matches(self, user: str, organization: str, pool: str, name: str) -> bool:
        """Whether the job of that submitter, organization, pool and name is meant."""
        return (
            (not self.submitters or is_submitter(user, self.submitters))
            and self.matches_organization(organization)
            and _any_matches(pool, self.pools)
            and _any_matches(name, self.names)
        )

    def matches_organization(self, organization: str) -> bool:
        """Whether jobs of the organization may be meant."""
        return _any_matches(organization, self.organizations)


class SizeBuckets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In which order a flow takes its small and its larger jobs: ``ledger.size_buckets``."""

    bounds_ms: tuple[int, ...] = ()
    """Rising, in slot-milliseconds; what costs more than the last is in the last bucket."""
    small_first: int = 4
    """After so many of one bucket it is the turn of a larger one."""


class LongJobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many jobs may run at once that cost more than so much and cannot be asked to yield."""

    above_ms: int = 0
    """Slot-milliseconds."""
    max_running: int = 0


class WorkloadClass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``weight`` in thousandths."""

    weight: int = WEIGHT_ONE
    allow: tuple[AllowRule, ...] = ()
    """Who may have it; empty: everybody."""
    demote_to: str = ""
    """The class of those who may not; empty: they are rejected."""
    strict: bool = False
    """Its flows are served before all that are not strict."""
    wait_target_ms: int = 0
    """A longer wait is shown as overdue."""
    quantum_ms: int = 0
    """After it a resumable job yields to one of another flow that waits; 0: never."""
    size_buckets: SizeBuckets | None = None
    long_jobs: LongJobs | None = None
    """Of the class in all pools together, but those of external services."""
    limits: Limits = Limits()


class FlowAgreement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for one flow alone."""

    wait_target_ms: int = 0
    limits: Limits = Limits()


class ApiLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an external service takes, over every 60 s and at once."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    in_flight: int = 0
    output_factor: int = 2
    """How many input tokens one output token counts for, in the cost of a job."""


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What calls of an external service cost, in millionths of the unit of money."""

    request_micros: int = 0
    input_micros: int = 0
    """Of 1,000 tokens."""
    output_micros: int = 0
    """Of 1,000 tokens."""


class RetryRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often failed work may be tried again."""

    attempts_max: int = 0
    """Of one job, the first included."""
    budget_percent: int = RETRY_BUDGET_PERCENT
    """Further attempts that a flow may have, of its first ones."""


class ClassSlots(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a class has of the slots of one pool; 0: nothing is said."""

    min: int = 0
    """Kept for it, also while it is idle: what is lent could not be taken back."""
    nominal: int = 0
    """Owed while others want them too, lent while it leaves them idle."""
    max: int = 0
    """Never more, however idle the pool is."""


class Pool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who serves a pool, and in which order it serves its flows."""

    workers: tuple[str, ...] = ()
    """Names of workers or nodes, or shell patterns of either."""
    discipline: str = "wfq"
    share: str = "organization"
    """``organization``: its classes divide its share; ``flow``: each flow has its own."""
    class_weights: dict[str, int] = {}
    """In thousandths; of a class that is not named the policy's."""
    class_slots: dict[str, ClassSlots] = {}
    """By class."""
    queue_age_ms: dict[str, int] = {}
    """By class; as ``Limits.queue_age_ms``."""
    long_jobs: LongJobs | None = None
    limits: Limits = Limits()
    api: ApiLimits | None = None
    """Of a pool that stands for an external service."""
    retry: RetryRule = RetryRule()
    memory_threshold_bytes: int = 0
    """A job that asks for more memory of each of its GPUs is charged more; 0: none is."""
    price: Price = Price()
    """Of a pool that stands for an external service."""

    @property
    def is_divided(self) -> bool:
        """Whether a class is owed slots: the tags of its flows then say nothing to others."""
        return any(slots.nominal for slots in self.class_slots.values())

    def lists(self, worker: str) -> bool:
        """Whether the roster names this worker, or its node."""
        node = re.sub(r"-(gpu|cpu)\d+$", "", worker)
        return any(
            fnmatchcase(worker, pattern) or fnmatchcase(node, pattern) for pattern in self.workers
        )


def _default_classes() -> dict[str, WorkloadClass]:
    return {
        "system": WorkloadClass(weight=6 * WEIGHT_ONE),
        "interactive": WorkloadClass(weight=6 * WEIGHT_ONE),
        "batch": WorkloadClass(),
    }


class Scope(msgspec.Struct, frozen=True, order=True):
    """What a limit counts: one organization, class, flow or pool; in one pool, or in all."""

    kind: str
    name: str
    pool: str = ""

    def __str__(self) -> str:
        within = f" in pool {self.pool}" if self.pool else ""
        return f"{self.kind} {self.name}{within}"


def scopes_of(flow: FlowId) -> tuple[Scope, ...]:
    """By whose limits the jobs of a flow count, in all pools together."""
    organization, workload_class, pool = flow_parts(flow)
    return (
        Scope("flow", flow),
        Scope("organization", organization),
        Scope("class", workload_class),
        Scope("pool", pool),
    )


class Standing(msgspec.Struct, frozen=True):
    """Organization and class under which a job is scheduled."""

    organization: str
    workload_class: str


class Refusal(msgspec.Struct, frozen=True):
    """Why a job has no standing."""

    reason: str


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Without entries: every organization has weight 1 and pools are what workers say."""

    organizations: dict[str, Organization] = {}
    classes: dict[str, WorkloadClass] = msgspec.field(default_factory=_default_classes)
    pools: dict[str, Pool] = {}
    flows: dict[FlowId, FlowAgreement] = {}
    default_organization: str = ""
    """Of submitters whom no organization lists, where any lists its members; empty: refused."""

    def organization_weight(self, organization: str) -> int:
        """In thousandths, at least one; 1 for an organization that the policy does not name."""
        return max(1, self.organizations.get(organization, Organization()).weight)

    def class_weight(self, workload_class: str, pool: str = "") -> int:
        """In thousandths, at least one: no policy, however wrong, may divide by nothing."""
        own = self.classes.get(workload_class, WorkloadClass()).weight
        return max(1, self.pool(pool).class_weights.get(workload_class, own))

    def flow_weight(
        self, organization: str, workload_class: str, pool: str, active: Iterable[str]
    ) -> tuple[int, int]:
        """Weight of a flow, numerator and denominator, while ``active`` classes have work too.

        ``w_org * w_class / sum of w_class over the organization's active classes``, its own
        among them: so only ``w_org`` counts between organizations, and more flows give no
        more share. In a pool that shares by flow it is plainly ``w_org * w_class``.
        """
        own = self.class_weight(workload_class, pool)
        if self.pool(pool).share == "flow":
            return self.organization_weight(organization) * own, WEIGHT_ONE * WEIGHT_ONE
        others = (self.class_weight(name, pool) for name in active if name != workload_class)
        return self.organization_weight(organization) * own, WEIGHT_ONE * (own + sum(others))

    def pool(self, name: str) -> Pool:
        return self.pools.get(name, _NO_POOL)

    def discipline(self, pool: str) -> str:
        return self.pool(pool).discipline

    def size_buckets(self, workload_class: str, pool: str) -> SizeBuckets | None:
        """Of the class in that pool; not where arrival alone counts, or tokens."""
        known, where = self.classes.get(workload_class), self.pool(pool)
        if known is None or where.api is not None or where.discipline == "fifo":
            return None
        return known.size_buckets

    def is_strict(self, workload_class: str) -> bool:
        """Whether flows of the class go before all others."""
        known = self.classes.get(workload_class)
        return known is not None and known.strict

    def pool_of(self, worker: str, declared: str) -> str:
        """The pool whose roster lists the worker; else the one that it declared itself.

        A pool with a roster is served by its roster only: a worker that declares it but
        is not listed serves none (the empty string).
        """
        for name, pool in self.pools.items():
            if pool.lists(worker):
                return name
        if self.pool(declared).workers:
            return ""
        return declared

    def standing(
        self, *, user: str, organization: str, workload_class: str, pool: str, name: str
    ) -> Standing | Refusal:
        """Under what a job is scheduled that asks for this, whatever its submitter says."""
        belongs = self._organization_of(user, organization)
        if isinstance(belongs, Refusal):
            return belongs
        allowed = self._class_for(user, belongs, workload_class, pool, name)
        return allowed if isinstance(allowed, Refusal) else Standing(belongs, allowed)

    def _organization_of(self, user: str, asked: str) -> str | Refusal:
        """Where nobody lists members, everybody says it for himself."""
        if not any(known.members for known in self.organizations.values()):
            return asked
        own = [
            name for name, known in self.organizations.items() if is_submitter(user, known.members)
        ]
        if asked in own:
            return asked
        says_nothing = asked in (as_name(user), as_name(user.partition("@")[0]))
        if own and says_nothing:
            return own[0]
        if own:
            return Refusal(f"{user} is no member of organization {asked!r}, but of {own[0]!r}")
        if self.default_organization:
            return self.default_organization
        return Refusal(f"no organization lists {user} among its members")

    def _class_for(
        self, user: str, organization: str, asked: str, pool: str, name: str
    ) -> str | Refusal:
        known = self.classes.get(asked)
        if known is None:
            return Refusal(f"no class {asked!r}; classes are {', '.join(self.classes)}")
        if not known.allow or any(
            rule.matches(user, organization, pool, name) for rule in known.allow
        ):
            return asked
        if known.demote_to:
            return known.demote_to
        return Refusal(
            f"no allow rule of class {asked!r} matches {user} of {organization} "
            f"with job {name!r} in pool {pool!r}"
        )

    def limits_of(self, flow: FlowId) -> Iterator[tuple[Scope, Limits]]:
        """The limits that hold for the jobs of a flow, the narrowest first."""
        organization, workload_class, pool = flow_parts(flow)
        agreed = self.flows.get(flow)
        if agreed is not None:
            yield Scope("flow", flow), agreed.limits
        if organization in self.organizations:
            yield Scope("organization", organization), self.organizations[organization].limits
        if workload_class in self.classes:
            yield Scope("class", workload_class), self.classes[workload_class].limits
        if pool in self.pools:
            yield Scope("pool", pool), self.pools[pool].limits

    def queue_age_ms(self, flow: FlowId) -> tuple[int, str]:
        """The shortest queue age that holds for a flow (0: none), and whose it is."""
        _, workload_class, pool = flow_parts(flow)
        ages = [
            (limits.queue_age_ms, str(scope))
            for scope, limits in self.limits_of(flow)
            if limits.queue_age_ms
        ]
        of_pool = self.pool(pool).queue_age_ms.get(workload_class, 0)
        if of_pool:
            ages.append((of_pool, f"class {workload_class} in pool {pool}"))
        return min(ages, default=(0, ""))

    def wait_target_ms(self, flow: FlowId) -> int:
        """Beyond which a wait of the flow is overdue; 0: never."""
        workload_class = flow_parts(flow)[1]
        own = self.flows[flow].wait_target_ms if flow in self.flows else 0
        return own or self.classes.get(workload_class, WorkloadClass()).wait_target_ms


_NO_POOL = Pool()


def is_submitter(user: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern names ``user``, or the part of it before the host."""
    short = user.partition("@")[0]
    return any(fnmatchcase(user, each) or fnmatchcase(short, each) for each in patterns)


def _any_matches(text: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)
