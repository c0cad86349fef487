"""A ledger in the making, with as many flows and waiting jobs as one wants to measure.

Owns the facts of a steady state: each turn, jobs that run end, as many new ones arrive, and the
leader's own ``take_turn`` decides the page. Nothing sleeps and nothing is random. With a store
the pages are encoded and chained, so that ``simulation.verify`` derives them again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

import msgspec

from ledger import events as e
from ledger.keys import FactKey, page_key
from ledger.names import BASE32, Epoch, JobId, NodeName, Seq, WriterName, worker_name
from ledger.policy import Policy, Pool
from ledger.projection import Projection
from ledger.state import RULES, State
from ledger.stores.base import Store
from scheduling.decide import Scheduler
from scheduling.turn import take_turn

LEDGER = "bench"

_LEADER = WriterName("dispatcher-bench~aaaaaaaa")
_CLIENT = WriterName("cli-bench~aaaaaaaa")
_NODE_SLOTS = 8
_RUN_MS = 3_600_000
_TURN_MS = 1_000


class MadeLedger:
    """One pool of nodes of 8 slots; jobs of one slot, by turns of each organization."""

    def __init__(
        self, *, flows: int, slots: int, discipline: str, store: Store | None = None
    ) -> None:
        self.projection = Projection(State(ledger=LEDGER))
        self.scheduler = Scheduler(self.projection)
        self.decisions = 0
        self.facts = 0
        self._flows = flows
        self._store = store
        self._at = 0
        self._jobs = 0
        self._numbers: dict[WriterName, int] = {}
        self._running: deque[e.AttemptAssigned] = deque()
        self._starts: list[e.AnyFact] = []
        policy = Policy(pools={"default": Pool(discipline=discipline)})
        ready = [self._ready(index) for index in range(slots)]
        applied = e.PolicyApplied(at=0, writer=_CLIENT, policy=policy)
        self._page([applied, *ready], elected=True)

    def submit(self, jobs: int) -> None:
        """One page with so many more jobs."""
        self._page([self._submitted() for _ in range(jobs)])

    def turn(self, jobs: int) -> None:
        """One page: so many of the oldest jobs end, as many arrive, and as many are assigned."""
        ends = [self._finished(self._running.popleft()) for _ in range(jobs)]
        arrivals = [self._submitted() for _ in range(jobs)]
        self._page([*self._starts, *ends, *arrivals])

    @property
    def waiting(self) -> int:
        return self.projection.state.pools["default"].waiting

    def _page(self, facts: Sequence[e.AnyFact], *, elected: bool = False) -> None:
        projection = self.projection
        state = projection.state
        seq, prev_sha256 = Seq(state.seq + 1), state.page_sha256
        posted = tuple(self._post(fact) for fact in facts)
        decisions, fair = take_turn(
            projection,
            self.scheduler,
            at=self._at,
            epoch=Epoch(1),
            leader=_LEADER,
            facts=posted,
            seen=(),
            elected=elected,
        )
        sha256 = ""
        if self._store is not None:
            page = e.Page(
                ledger=LEDGER,
                seq=seq,
                epoch=Epoch(1),
                leader=_LEADER,
                at=self._at,
                prev_sha256=prev_sha256,
                rules=RULES,
                facts=posted,
                decisions=decisions,
                fair=fair,
                put_id=e.PutId("a" * 26),
            )
            body = e.encode(page)
            self._store.put_once(page_key(seq), body)
            sha256 = hashlib.sha256(body).hexdigest()
        projection.finish(seq, sha256)
        self.facts += len(posted)
        self.decisions += len(decisions)
        assigned = [made for made in decisions if isinstance(made, e.AttemptAssigned)]
        self._running.extend(assigned)
        self._starts = [self._started(made) for made in assigned]
        self._at += _TURN_MS

    def _post(self, fact: e.AnyFact) -> e.Posted:
        name = fact.writer
        n = self._numbers.get(name, 0)
        self._numbers[name] = n + 1
        key = FactKey(stamp_ms=self._at, writer=name, n=n, kind=e.kind_of(fact)).format()
        return e.Posted(key=key, fact=msgspec.structs.replace(fact, n=n))

    # -- facts

    def _ready(self, index: int) -> e.AnyFact:
        node = NodeName(f"n{index // _NODE_SLOTS}")
        worker = worker_name(node, "cpu", index % _NODE_SLOTS)
        return e.WorkerReady(
            at=0,
            writer=WriterName(f"{worker}~aaaaaaaa"),
            worker=worker,
            cursor=0,
            node=node,
            machine=node,
            pool="default",
            slot=e.Slot(kind="cpu", index=index % _NODE_SLOTS),
            running=(),
        )

    def _submitted(self) -> e.AnyFact:
        number, self._jobs = self._jobs, self._jobs + 1
        spec = e.JobSpec(
            id=_job_id(number),
            name="train",
            organization=f"org{number % self._flows}",
            workload_class="batch",
            pool="default",
            user="bench",
            estimate_ms=_RUN_MS,
        )
        return e.Submitted(at=self._at, writer=_CLIENT, job=spec)

    def _started(self, assigned: e.AttemptAssigned) -> e.AnyFact:
        return e.AttemptStarted(
            at=self._at,
            writer=WriterName(f"{assigned.slots[0]}~aaaaaaaa"),
            worker=assigned.slots[0],
            cursor=assigned.message + 1,
            job=assigned.job,
            attempt=assigned.attempt,
        )

    def _finished(self, assigned: e.AttemptAssigned) -> e.AnyFact:
        return e.AttemptFinished(
            at=self._at,
            writer=WriterName(f"{assigned.slots[0]}~aaaaaaaa"),
            worker=assigned.slots[0],
            cursor=assigned.message + 1,
            job=assigned.job,
            attempt=assigned.attempt,
            outcome="exited",
            rc=0,
            started_at=self._at - _RUN_MS // 100,
            ended_at=self._at,
        )


def _job_id(number: int) -> JobId:
    """The number in base 32, eight letters."""
    return JobId("".join(BASE32[number >> shift & 31] for shift in range(35, -5, -5)))
