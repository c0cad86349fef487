"""Small jobs before larger ones, in turns, and a limit on the long ones that run at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import LongJobs, Policy, Pool, SizeBuckets, WorkloadClass
from ledger.size_buckets import bucket_of, preference, turns_after
from scheduling.account import Accounts
from scheduling.explain import Explainer
from scheduling.headroom import Headroom
from scheduling.placement import Fleet
from tests.world import World, world_of_one_node

SECOND_MS = 1_000
RULE = SizeBuckets(bounds_ms=(10 * SECOND_MS, 60 * SECOND_MS), small_first=2)


def policy(discipline: str = "sfq") -> Policy:
    classes = {"interactive": WorkloadClass(size_buckets=RULE), "batch": WorkloadClass()}
    return Policy(classes=classes, pools={"default": Pool(discipline=discipline)})


def submit(made: World, *seconds: int, **more: object) -> list[JobId]:
    more = {"workload_class": "interactive", **more}
    jobs = [made.submit("a", estimate_ms=each * SECOND_MS, **more) for each in seconds]  # type: ignore[arg-type]
    made.turn()
    return jobs


def end(made: World, job: JobId) -> None:
    made.start(job)
    made.turn(after_ms=SECOND_MS)
    made.finish(job)
    made.turn()


def run_all(made: World) -> list[int]:
    """Everything runs on one slot; estimates of the jobs in the order of their starts, in s."""
    order = made.assigned()
    while (last := made.assigned()[-1]) and not made.job(last).state.ended:
        end(made, last)
        order = made.assigned()
    return [made.job(job).spec.estimate_ms // SECOND_MS for job in order]


# --- turns


def test_a_bound_still_belongs_to_the_smaller_bucket() -> None:
    assert [bucket_of(RULE, each * SECOND_MS) for each in (1, 10, 11, 60, 61)] == [0, 0, 1, 1, 2]


def test_small_ones_go_first_but_after_two_of_them_a_larger_one_must() -> None:
    """One slot. The first job finds it free. Of the others (1 s: small, 20 s: middle, 100 s: large)
    two small ones go, then a middle one, twice; then, two middle ones having gone, a large one."""
    made = world_of_one_node(1, policy())
    submit(made, 5)
    submit(made, 100, 20, 100, 20, 20, 1, 1, 1, 1, 1, 1, 1)
    # The first one (5 s) was small as well, so one more small one follows it.
    assert run_all(made) == [5, 1, 20, 1, 1, 20, 1, 1, 100, 1, 1, 20, 100]


def test_a_flow_without_larger_jobs_is_not_kept_from_its_small_ones() -> None:
    made = world_of_one_node(1, policy())
    submit(made, 1, 2, 3, 4, 5)
    assert run_all(made) == [1, 2, 3, 4, 5]


def test_within_a_bucket_arrival_decides() -> None:
    made = world_of_one_node(1, policy())
    submit(made, 9)
    submit(made, 8, 3, 7)
    assert run_all(made) == [9, 8, 3, 7]


@pytest.mark.parametrize("workload_class", ["batch", "interactive"])
def test_arrival_decides_under_fifo_and_in_a_class_without_buckets(workload_class: str) -> None:
    made = world_of_one_node(1, policy("fifo" if workload_class == "interactive" else "sfq"))
    submit(made, 100, 20, 1, workload_class=workload_class)
    assert run_all(made) == [100, 20, 1]


def test_the_places_of_waiting_jobs_are_those_in_which_they_will_go() -> None:
    """As the test above has it: after 5 s come 1, 20, 1, 100."""
    made = world_of_one_node(1, policy())
    submit(made, 5)
    large, middle, small, last = submit(made, 100, 20, 1, 1)
    why = Explainer(made.projection).why
    assert why(made.job(middle)) == "1 before it in a/interactive (by size: it is of bucket 2)"
    assert why(made.job(large)).startswith("3 before it in a/interactive")
    fleet = Fleet(made.state)
    accounts = Accounts(made.projection, fleet, Headroom(made.projection, fleet))
    order = (small, middle, last, large)
    assert [accounts.of(made.job(job)).earlier_jobs for job in order] == [
        order[:place] for place in range(4)
    ]


def test_a_job_that_says_nothing_is_as_large_as_the_last_of_its_name() -> None:
    """Ten minutes at first; then what the first one took: a second."""
    made = world_of_one_node(1, policy())
    first = made.submit("a", workload_class="interactive", name="eval-1", estimate_ms=0)
    made.turn()
    assert made.job(first).size == 600 * SECOND_MS
    end(made, first)
    second = made.submit("a", workload_class="interactive", name="eval-2", estimate_ms=0)
    made.turn()
    assert made.job(second).size == SECOND_MS


@given(
    sizes=st.lists(st.integers(0, 2), max_size=60),
    small_first=st.integers(1, 4),
    begun=st.lists(st.integers(0, 4), max_size=3),
)
def test_of_any_k_plus_one_in_a_row_one_is_of_a_larger_bucket(
    sizes: list[int], small_first: int, begun: list[int]
) -> None:
    """As long as any waits there; whatever counts the rule begins with."""
    rule = SizeBuckets(bounds_ms=(1, 2), small_first=small_first)
    waiting, turns, went = sorted(sizes), tuple(begun), list[int]()
    row = 0
    while waiting:
        order = preference(rule, turns)
        assert sorted(order) == [0, 1, 2]
        bucket = next(each for each in order if each in waiting)
        row = row + 1 if bucket == 0 and waiting[-1] > 0 else 0
        assert row <= small_first
        waiting.remove(bucket)
        turns = turns_after(rule, turns, bucket)
        went.append(bucket)
    assert sorted(went) == sorted(sizes)


# --- long jobs


def limited(*, of_pool: bool, slots: int = 4) -> World:
    rule = LongJobs(above_ms=60 * SECOND_MS, max_running=2)
    batch = WorkloadClass(quantum_ms=SECOND_MS, long_jobs=None if of_pool else rule)
    pool = Pool(discipline="sfq", long_jobs=rule if of_pool else None)
    classes = {"batch": batch, "interactive": WorkloadClass()}
    return world_of_one_node(slots, Policy(classes=classes, pools={"default": pool}))


@pytest.mark.parametrize("of_pool", [True, False], ids=["pool", "class"])
def test_so_many_long_jobs_run_at_once_and_shorter_ones_of_the_flow_pass(of_pool: bool) -> None:
    made = limited(of_pool=of_pool)
    jobs = submit(made, 100, 61, 100, 60, 1, workload_class="batch")
    states = [made.job(job).state for job in jobs]
    assigned = JobState.ASSIGNED
    assert states == [assigned, assigned, JobState.PENDING, assigned, assigned]
    whose = "pool default" if of_pool else "class batch"
    assert Explainer(made.projection).why(made.job(jobs[2])) == (
        f"next of its flow; {whose} runs 2 of at most 2 jobs of more than 1m of slot time"
    )
    end(made, jobs[3])
    assert made.job(jobs[2]).state is JobState.PENDING
    end(made, jobs[0])
    assert made.job(jobs[2]).state is assigned


def test_the_slots_of_a_job_make_it_long() -> None:
    """Two of 40 s each take 80 s of slot time."""
    made = limited(of_pool=True, slots=8)
    jobs = submit(made, 40, 40, 40, workload_class="batch", slots=2)
    states = [made.job(job).state for job in jobs]
    assert states == [JobState.ASSIGNED, JobState.ASSIGNED, JobState.PENDING]


def test_what_can_be_asked_to_yield_is_not_long() -> None:
    made = limited(of_pool=True)
    jobs = submit(made, 100, 100, 100, workload_class="batch", resumable=True)
    assert all(made.job(job).state is JobState.ASSIGNED for job in jobs)
    interactive = submit(made, 100, resumable=True)
    assert made.job(interactive[0]).state is JobState.ASSIGNED, "two others are none"


def test_a_limit_that_a_policy_brings_counts_what_runs_already() -> None:
    made = world_of_one_node(4)
    submit(made, 100, 100, workload_class="batch")
    pool = Pool(long_jobs=LongJobs(above_ms=60 * SECOND_MS, max_running=2))
    made.apply_policy(Policy(pools={"default": pool}))
    made.turn()
    [third] = submit(made, 100, workload_class="batch")
    assert made.job(third).state is JobState.PENDING
