"""What fair sharing promises, case by case: one measured figure beside the one expected.

Every expected value is worked by hand in the docstring of its case, for start order
(``sfq``). ``python -m tests.scheduling.agreement`` prints the table for ``sfq`` and ``wfq``.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

from ledger.decisions import AttemptAssigned
from ledger.names import JobId
from ledger.policy import Limits, Organization, Policy, Pool, WorkloadClass
from simulation.engine import Outcome, simulate
from simulation.workload import SimJob, Workload, node
from tests.world import World

SECOND = 1_000
CASES: dict[str, Callable[[str], dict[str, float]]] = {}


def case(name: str) -> Callable[..., Callable[[str], dict[str, float]]]:
    """Under which name a case stands in the table."""

    def add(measure: Callable[[str], dict[str, float]]) -> Callable[[str], dict[str, float]]:
        CASES[name] = measure
        return measure

    return add


# --- how a case is run


def job(who: str, at_s: float, for_s: float, slots: int = 1, **more: object) -> SimJob:
    """Its estimate is right unless the case says another."""
    duration_ms = round(for_s * SECOND)
    return SimJob(
        name="job",
        organization=who,
        arrival_ms=round(at_s * SECOND),
        duration_ms=duration_ms,
        slots=slots,
        **{"estimate_ms": duration_ms, **more},  # type: ignore[arg-type]
    )


def backlog(who: str, number: int, for_s: float, at_s: float = 0, **more: object) -> list[SimJob]:
    return [job(who, at_s, for_s, **more) for _ in range(number)]  # type: ignore[arg-type]


def run(
    discipline: str, slots: int, jobs: list[SimJob], until_s: float | None = None, **policy: object
) -> Outcome:
    workload = Workload(
        title="case",
        jobs=tuple(jobs),
        slots=node("n1", slots),
        until_ms=None if until_s is None else round(until_s * SECOND),
    )
    pools = {"default": Pool(discipline=discipline)}
    return simulate(workload, Policy(pools=pools, **policy))  # type: ignore[arg-type]


def slots_of(outcome: Outcome, from_s: float, until_s: float) -> dict[str, float]:
    """Slots that each organization held on average between two times."""
    begin, end = from_s * SECOND, until_s * SECOND
    held: Counter[str] = Counter()
    for one in outcome.runs:
        if one.start_ms is not None:
            stop = end if one.end_ms is None else min(one.end_ms, end)
            held[one.job.organization] += round(max(0, stop - max(one.start_ms, begin)))
    return {who: time_ms / (end - begin) for who, time_ms in sorted(held.items())}


def wait_s(outcome: Outcome, index: int) -> float:
    wait_ms = outcome.runs[index].wait_ms
    assert wait_ms is not None
    return wait_ms / SECOND


class Clockwork:
    """A world in which jobs take their time; for cases in which somebody acts meanwhile."""

    def __init__(self, slots: int, policy: Policy) -> None:
        self.world = World(policy)
        self.world.node_up("n1", slots)
        self.world.turn()
        self.began_ms = self.world.at
        self.durations_ms: dict[JobId, int] = {}
        self.owners: dict[JobId, str] = {}
        self.started_ms: dict[JobId, int] = {}
        self.ends: list[tuple[int, JobId]] = []
        self.on_end: Callable[[JobId], None] = lambda job: None

    @property
    def now_s(self) -> float:
        return (self.world.at - self.began_ms) / SECOND

    def submit(self, who: str, for_s: float) -> JobId:
        made = self.world.submit(who, estimate_ms=round(for_s * SECOND))
        self.durations_ms[made], self.owners[made] = round(for_s * SECOND), who
        return made

    def turn(self) -> None:
        """One page, and what it started begins."""
        for decision in self.world.turn():
            if isinstance(decision, AttemptAssigned):
                self.started_ms[decision.job] = self.world.at
                self.world.start(decision.job)
                end_ms = self.world.at + self.durations_ms[decision.job]
                heapq.heappush(self.ends, (end_ms, decision.job))

    def run_until(self, until_s: float) -> None:
        until_ms = self.began_ms + round(until_s * SECOND)
        self.turn()
        while self.ends and self.ends[0][0] <= until_ms:
            self.world.at = self.ends[0][0]
            while self.ends and self.ends[0][0] <= self.world.at:
                _, made = heapq.heappop(self.ends)
                self.world.finish(made)
                self.on_end(made)
            self.turn()
        self.world.at = until_ms
        self.turn()

    def held(self, from_s: float, until_s: float) -> dict[str, float]:
        """Slots that each organization held on average between two times."""
        begin, end = (self.began_ms + round(s * SECOND) for s in (from_s, until_s))
        total: Counter[str] = Counter()
        for made, start in self.started_ms.items():
            stop = min(start + self.durations_ms[made], end)
            total[self.owners[made]] += max(0, stop - max(start, begin))
        return {who: time_ms / (end - begin) for who, time_ms in sorted(total.items())}


# --- the cases


@case("weights 1:2:3:4, all backlogged, equal jobs, 8 slots")
def weights(discipline: str) -> dict[str, float]:
    """Of 1,000 dispatches each flow gets its weight in tenths: 100, 200, 300, 400."""
    organizations = {name: Organization(weight=n * 1_000) for n, name in enumerate("abcd", 1)}
    jobs = [one for name in "abcd" for one in backlog(name, 500, 10)]
    outcome = run(discipline, 8, jobs, organizations=organizations)
    started = [one for one in outcome.runs if one.start_ms is not None]
    first = sorted(started, key=lambda one: one.dispatch)[:1_000]
    counted = Counter(one.job.organization for one in first)
    return {name: float(counted[name]) for name in "abcd"}


@case("estimates 10x too low and 10x too high, equal weights, 4 slots, 10 s jobs, 10,000 s")
def wrong_estimates(discipline: str) -> dict[str, float]:
    """Settling makes up for both: 2 slots each."""
    jobs = backlog("low", 4_000, 10, estimate_ms=1_000)
    jobs += backlog("high", 4_000, 10, estimate_ms=100_000)
    outcome = run(discipline, 4, jobs, until_s=10_000)
    return slots_of(outcome, 0, 10_000)


@case("flow idle for an hour, returns beside a busy one, 4 slots, 1 s jobs")
def idle_flow(discipline: str) -> dict[str, float]:
    """Half (2 slots) at once and later: what it did not use is gone."""
    jobs = backlog("back", 4, 1) + backlog("busy", 18_000, 1)
    jobs += backlog("back", 2_000, 1, at_s=3_600)
    outcome = run(discipline, 4, jobs, until_s=3_800)
    first = slots_of(outcome, 3_601, 3_611)["back"]
    return {"first 10 s": first, "first 200 s": slots_of(outcome, 3_600, 3_800)["back"]}


@case("closed loop of 30 s jobs beside two flows of 1 s jobs, one slot")
def closed_loop(discipline: str) -> dict[str, float]:
    """A third each: coming back right after its end neither gains nor loses anything."""
    made = Clockwork(1, Policy(pools={"default": Pool(discipline=discipline)}))
    loop = [made.submit("loop", 30)]
    for name in ("x", "y"):
        for _ in range(1_300):
            made.submit(name, 1)

    def again(ended: JobId) -> None:
        if ended == loop[-1]:
            loop.append(made.submit("loop", 30))

    made.on_end = again
    made.run_until(1_890)
    return made.held(0, 1_890)


@case("cap of 1 lifted after 200 s, 3 slots, competitor uncapped, 1 s jobs")
def lifted_cap(discipline: str) -> dict[str, float]:
    """1.5 slots each from then on; without the bound on credit the freed flow would take all
    for long. The competitor keeps at least 1.2 in the next 5 s."""
    pools = {"default": Pool(discipline=discipline)}
    capped = {"capped": Organization(limits=Limits(slots=1))}
    made = Clockwork(3, Policy(pools=pools, organizations=capped))
    for name in ("capped", "free"):
        for _ in range(500):
            made.submit(name, 1)
    made.run_until(200)
    made.world.apply_policy(Policy(pools=pools))
    made.run_until(205)
    return {"free, next 5 s": made.held(200, 205)["free"]}


@case("organization split over 4 flows beside an organization with 1")
def split(discipline: str) -> dict[str, float]:
    """Half each: 2 of 4 slots, whatever the number of its flows."""
    classes = {f"c{n}": WorkloadClass() for n in range(4)}
    jobs = [j for n in range(4) for j in backlog("split", 300, 10, workload_class=f"c{n}")]
    jobs += backlog("whole", 600, 10, workload_class="c0")
    return slots_of(run(discipline, 4, jobs, until_s=1_000, classes=classes), 0, 1_000)


@case("A batch only, B interactive only, equal weights, classes 6:1")
def classes_do_not_count(discipline: str) -> dict[str, float]:
    """Half each: between organizations only their weights count."""
    jobs = backlog("a", 600, 10) + backlog("b", 600, 10, workload_class="interactive")
    return slots_of(run(discipline, 4, jobs, until_s=1_000), 0, 1_000)


@case("one organization with both classes, 6:1, 7 slots")
def classes_within(discipline: str) -> dict[str, float]:
    """Inside it 6:1: of 700 dispatches 600 and 100."""
    jobs = backlog("a", 800, 10) + backlog("a", 800, 10, workload_class="interactive")
    outcome = run(discipline, 7, jobs)
    first = sorted(outcome.runs, key=lambda one: one.dispatch)[:700]
    return dict(Counter(one.job.workload_class for one in first))


@case("99 of 100 queued jobs cancelled, beside a busy flow, one slot of 10 s jobs")
def cancelled(discipline: str) -> dict[str, float]:
    """The hundredth starts as if the 99 had never been: next after the job that runs."""

    def start_of_last(cancels: bool) -> float:
        made = Clockwork(1, Policy(pools={"default": Pool(discipline=discipline)}))
        for _ in range(40):
            made.submit("busy", 10)
        made.run_until(5)
        queued = [made.submit("user", 10) for _ in range(100 if cancels else 1)]
        made.turn()
        for one in queued[:-1]:
            made.world.cancel(one)
        made.run_until(300)
        return (made.started_ms[queued[-1]] - made.began_ms) / SECOND

    return {"as if": start_of_last(cancels=False), "cancelled": start_of_last(cancels=True)}


@case("one slot, a new organization a second with a 1 s job, at 100 s a 1,000 s job")
def newcomers(discipline: str) -> dict[str, float]:
    """Under ``sfq`` its own length does not count: it starts within 2 s. Under ``wfq`` each
    newcomer's finish tag lies before its own for as long as they come."""
    jobs = [job(f"n{n}", n, 1) for n in range(3_000)]
    jobs.append(job("long", 100, 1_000))
    return {"wait of the long job, s": wait_s(run(discipline, 1, jobs), 3_000)}


@case("6 slots, X capped at 1, weights Y 1, Z 2")
def water_filling(discipline: str) -> dict[str, float]:
    """X has its 1; Y and Z share the other 5 as 1:2, which is 1.67 and 3.33."""
    organizations = {
        "x": Organization(limits=Limits(slots=1)),
        "y": Organization(),
        "z": Organization(weight=2_000),
    }
    jobs = [one for name in "xyz" for one in backlog(name, 1_000, 10)]
    outcome = run(discipline, 6, jobs, until_s=3_000, organizations=organizations)
    return slots_of(outcome, 0, 3_000)


@case("8 slots, one busy for 100 s; an 8-slot job is chosen; 70 one-slot jobs of 10 s wait")
def backfilled(discipline: str) -> dict[str, float]:
    """7 free slots for 100 s hold exactly 70 jobs of 10 s, all over when it starts at 100 s."""
    jobs = [job("first", 0, 100), job("wide", 1, 50, slots=8)]
    jobs += [job("small", 2, 9.8, time_limit_ms=9_800) for _ in range(70)]
    outcome = run(discipline, 8, jobs)
    before = sum(1 for one in outcome.runs[2:] if (one.end_ms or 1 << 60) <= 100 * SECOND)
    return {"start of the wide job, s": wait_s(outcome, 1) + 1, "over before it": before}


@case("6-slot job of 60 s every 200 s beside two flows of 1-slot jobs of 5 to 15 s, 8 slots")
def gangs(discipline: str) -> dict[str, float]:
    """All start. Once it is chosen, 6 slots are free as soon as 4 of 8 running jobs of at most
    15 s (the others are free or end before) are over: under 20 s with the wait for its turn."""
    rng = random.Random(7)
    jobs = [job("gang", 50 + 200 * n, 60, slots=6) for n in range(20)]
    for name in ("x", "y"):
        jobs += [job(name, 0, rng.randint(5, 15)) for _ in range(2_500)]
    outcome = run(discipline, 8, jobs, until_s=4_200)
    waits = [one.wait_ms for one in outcome.runs[:20]]
    started = [wait for wait in waits if wait is not None]
    return {"started": len(started), "longest wait, s": max(started) / SECOND}


@case("capped flow at the head")
def capped_head(discipline: str) -> dict[str, float]:
    """It came first and may have nothing more; the other starts at once."""
    organizations = {"x": Organization(limits=Limits(slots=1))}
    jobs = [job("x", 0, 100), job("x", 1, 100), job("y", 2, 10)]
    outcome = run(discipline, 2, jobs, organizations=organizations)
    return {"wait of the other, s": wait_s(outcome, 2), "wait at the cap, s": wait_s(outcome, 1)}


def main() -> None:
    for name, measure in CASES.items():
        print(name)
        for discipline in ("sfq", "wfq"):
            measured = measure(discipline).items()
            figures = ", ".join(f"{what} {value:.2f}" for what, value in measured)
            print(f"    {discipline}  {figures}")


if __name__ == "__main__":
    main()
