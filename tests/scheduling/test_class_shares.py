"""The slots of a pool that its classes keep, are owed and may have at most."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import events as e
from ledger.checkpoint import decode_checkpoint, encode_checkpoint
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import (
    ClassSlots,
    Limits,
    LongJobs,
    Organization,
    Policy,
    Pool,
    SizeBuckets,
    WorkloadClass,
)
from ledger.projection import Projection
from ledger.state import State
from scheduling.decide import Scheduler
from scheduling.explain import Explainer
from tests.naive_reader import NaiveReader
from tests.scheduling.checks import check_each_assignment, check_no_slot_is_left_idle
from tests.world import World, world_of_one_node

SECOND_MS = 1_000


def world(slots: int, *, discipline: str = "sfq", weight: int = 1, **shares: ClassSlots) -> World:
    pool = Pool(discipline=discipline, class_slots=shares)
    organizations = {"a": Organization(weight=1_000 * weight)}
    return world_of_one_node(slots, Policy(pools={"default": pool}, organizations=organizations))


def running(made: World) -> dict[str, int]:
    """Slots that each class holds."""
    held: Counter[str] = Counter()
    for worker in made.state.workers.values():
        if worker.occupant is not None:
            held[made.job(worker.occupant.job).placed.workload_class] += 1
    return dict(held)


def submit(made: World, workload_class: str, count: int, organization: str = "a") -> list[JobId]:
    jobs = [made.submit(organization, workload_class=workload_class) for _ in range(count)]
    made.turn()
    return jobs


def end(made: World, job: JobId) -> None:
    made.start(job)
    made.turn(after_ms=SECOND_MS)
    made.finish(job)
    made.turn()


def end_the_oldest(made: World) -> JobId:
    """The running job that was assigned first ends, after it ran for its estimate."""
    ended = {d for d in made.assigned() if made.job(d).state.ended}
    oldest = next(job for job in made.assigned() if job not in ended)
    end(made, oldest)
    return oldest


def check_the_second_reader_agrees(made: World) -> None:
    """It asserts the digest of each page."""
    reader = NaiveReader("test")
    for page in made.pages:
        reader.read(e.encode(page))


# --- at most


@pytest.mark.parametrize("discipline", ["wfq", "sfq", "fifo", "strict"])
def test_a_class_never_has_more_than_its_most_however_idle_the_pool_is(discipline: str) -> None:
    """Batch may have 7 of 8: the eighth slot is there for whoever else comes."""
    made = world(8, discipline=discipline, batch=ClassSlots(max=7))
    batch = submit(made, "batch", 10)
    assert running(made) == {"batch": 7}
    submit(made, "interactive", 1)
    assert running(made) == {"batch": 7, "interactive": 1}
    end(made, batch[0])
    assert running(made) == {"batch": 7, "interactive": 1}


def test_the_most_of_a_class_counts_all_its_flows_of_that_pool_alone() -> None:
    made = world(4, batch=ClassSlots(max=2))
    made.node_up("n2", 2, pool="other")
    submit(made, "batch", 2, "a")
    submit(made, "batch", 2, "b")
    assert running(made) == {"batch": 2}
    elsewhere = made.submit("a", pool="other")
    made.turn()
    assert made.job(elsewhere).state is JobState.ASSIGNED


def test_a_job_that_is_larger_than_the_most_of_its_class_is_rejected() -> None:
    made = world(8, batch=ClassSlots(max=2))
    job = made.submit("a", slots=3)
    made.turn()
    assert made.job(job).state is JobState.REJECTED
    assert made.job(job).reason == (
        "it needs 3 slots, and class batch may run 2 at once in pool default"
    )


# --- kept


def test_what_is_kept_for_a_class_is_free_when_it_comes() -> None:
    """2 of 8 are kept for interactive: 6 batch jobs run, and 4 wait beside 2 free slots."""
    made = world(8, interactive=ClassSlots(min=2))
    batch = submit(made, "batch", 10)
    assert running(made) == {"batch": 6}
    blocked = [d for d in made.decisions if isinstance(d, e.FlowBlocked)]
    assert [d.reason for d in blocked] == [
        "pool default keeps 2 for class interactive, and has 2 free"
    ]
    submit(made, "interactive", 1)
    assert running(made) == {"batch": 6, "interactive": 1}
    end(made, batch[0])
    assert running(made) == {"batch": 6, "interactive": 1}


def test_a_class_may_have_more_than_is_kept_for_it_where_nothing_is_kept_for_others() -> None:
    made = world(4, interactive=ClassSlots(min=1))
    submit(made, "interactive", 6)
    assert running(made) == {"interactive": 4}


def test_a_slot_that_a_class_gives_back_is_kept_for_it_again() -> None:
    made = world(3, interactive=ClassSlots(min=1))
    [job] = submit(made, "interactive", 1)
    submit(made, "batch", 4)
    assert running(made) == {"interactive": 1, "batch": 2}
    end(made, job)
    assert running(made) == {"batch": 2}


def test_what_two_classes_keep_of_a_pool_that_shrank_goes_to_who_comes_first() -> None:
    """2 slots, of which 2 are kept for each of two classes: nobody else may have any."""
    made = world(2, interactive=ClassSlots(min=2), system=ClassSlots(min=2))
    submit(made, "batch", 1)
    assert running(made) == {}
    submit(made, "interactive", 1)
    submit(made, "system", 1)
    assert running(made) == {"interactive": 1, "system": 1}


def test_a_wide_job_gets_a_reservation_although_slots_that_are_free_are_kept() -> None:
    """4 slots, 1 kept. A batch job runs and one of 2 slots waits: 3 are free once it has ended.

    Until then 3 are free, and 1 is kept: the wide job starts at once. With two that run, 2 are
    free, which it may not have; the slots are reserved, so that narrow jobs do not pass.
    """
    made = world(4, interactive=ClassSlots(min=1))
    narrow = submit(made, "batch", 2)
    wide = made.submit("b", slots=2)
    made.turn()
    later = submit(made, "batch", 1)[0]
    assert made.job(wide).state is JobState.PENDING
    assert made.state.reservations["default"].job == wide
    assert made.job(later).state is JobState.PENDING
    [quick] = submit(made, "interactive", 1)
    assert made.job(quick).state is JobState.ASSIGNED
    end(made, narrow[0])
    assert made.job(wide).state is JobState.ASSIGNED
    assert made.job(later).state is JobState.PENDING


def test_a_wide_job_that_what_is_kept_never_leaves_room_for_holds_nobody_up() -> None:
    made = world(4, interactive=ClassSlots(min=1))
    wide = made.submit("b", slots=4)
    made.turn()
    submit(made, "batch", 5)
    assert running(made) == {"batch": 3}
    assert made.job(wide).state is JobState.PENDING
    assert not made.state.reservations


# --- owed


@pytest.mark.parametrize("discipline", ["wfq", "sfq", "strict"])
def test_a_class_has_what_it_is_owed_whatever_the_weights_say(discipline: str) -> None:
    """Interactive weighs 6 times as much, and batch is owed 3 of 4 slots while it has work."""
    made = world(4, discipline=discipline, batch=ClassSlots(nominal=3))
    submit(made, "interactive", 30)
    assert running(made) == {"interactive": 4}
    submit(made, "batch", 30)
    assert running(made) == {"interactive": 4}
    for _ in range(3):
        end_the_oldest(made)
    assert running(made) == {"batch": 3, "interactive": 1}
    for _ in range(12):
        end_the_oldest(made)
        assert running(made) == {"batch": 3, "interactive": 1}


def test_what_a_class_is_owed_is_lent_while_it_leaves_it_idle() -> None:
    made = world(4, batch=ClassSlots(nominal=3), interactive=ClassSlots(nominal=1))
    submit(made, "interactive", 6)
    assert running(made) == {"interactive": 4}


def test_what_nobody_is_owed_goes_by_weight() -> None:
    """7 slots, 1 owed to each: of the 5 others interactive, 6 times as heavy, has 5, as the
    weights alone give it 6 of 7; batch has the one that it is owed."""
    made = world(7, batch=ClassSlots(nominal=1), interactive=ClassSlots(nominal=1))
    for _ in range(40):
        made.submit("a", workload_class="interactive")
        made.submit("a", workload_class="batch")
    made.turn()
    for _ in range(35):
        end_the_oldest(made)
    assert running(made) == {"interactive": 6, "batch": 1}


def test_who_comes_to_a_class_that_is_ahead_is_level_with_those_in_it() -> None:
    """Two slots, one owed to each class. Interactive's tags stay far behind those of batch, which
    weighs a sixth; a second organization that comes with the same work gets half of batch's slot,
    not all of it until its tags have come as far."""
    made = world(2, batch=ClassSlots(nominal=1), interactive=ClassSlots(nominal=1))
    submit(made, "interactive", 60)
    submit(made, "batch", 60)
    for _ in range(60):
        end_the_oldest(made)
    submit(made, "interactive", 30, "b")
    submit(made, "batch", 30, "b")
    before = len(made.assigned())
    for _ in range(40):
        end_the_oldest(made)
    since = [made.job(job).placed for job in made.assigned()[before:]]
    batch = Counter(spec.organization for spec in since if spec.workload_class == "batch")
    assert sum(batch.values()) == 20
    assert abs(batch["a"] - batch["b"]) <= 2
    check_the_second_reader_agrees(made)


# --- what people are told


def test_why_names_what_is_kept_and_what_a_class_is_owed() -> None:
    made = world(3, interactive=ClassSlots(min=1), batch=ClassSlots(nominal=1))
    jobs = submit(made, "batch", 3)
    why = Explainer(made.projection).why
    assert why(made.job(jobs[2])) == ("pool default keeps 1 for class interactive, and has 1 free")
    lent = world(1, batch=ClassSlots(nominal=1))
    jobs = submit(lent, "batch", 2)
    assert Explainer(lent.projection).why(lent.job(jobs[1])) == (
        "next of its flow; a slot must become free; class batch has what it is owed there "
        "(1), and classes that have less go first"
    )


# --- on any work

CLASSES = ("batch", "interactive", "system")

shares_of_a_class = st.builds(
    ClassSlots,
    min=st.sampled_from([0, 0, 1, 2]),
    nominal=st.sampled_from([0, 1, 2, 3]),
    max=st.sampled_from([0, 0, 3, 4]),
)
policies = st.builds(
    lambda discipline, shares, slots, long_jobs, of_class, buckets: Policy(
        pools={"default": Pool(discipline=discipline, class_slots=shares, long_jobs=long_jobs)},
        classes={
            "batch": WorkloadClass(long_jobs=of_class),
            "interactive": WorkloadClass(size_buckets=buckets),
            "system": WorkloadClass(),
        },
        organizations={"a": Organization(limits=Limits(slots=slots))},
    ),
    discipline=st.sampled_from(["wfq", "sfq", "strict"]),
    shares=st.dictionaries(st.sampled_from(CLASSES), shares_of_a_class, min_size=1),
    slots=st.sampled_from([0, 0, 3]),
    # A job takes a second of each of its slots.
    long_jobs=st.sampled_from([None, None, LongJobs(above_ms=1_500, max_running=1)]),
    of_class=st.sampled_from([None, None, LongJobs(above_ms=2_500, max_running=1)]),
    buckets=st.sampled_from([None, SizeBuckets(bounds_ms=(1_000, 2_000), small_first=2)]),
)
submits = st.tuples(
    st.just("submit"),
    st.sampled_from("ab"),
    st.sampled_from(CLASSES),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from([0, 2_000]),
)
ends = st.tuples(st.just("end"), st.integers(0, 5))
cancels = st.tuples(st.just("cancel"), st.integers(0, 20))
drains = st.tuples(st.sampled_from(["drain", "undrain"]))
steps = st.lists(st.one_of(submits, submits, ends, ends, cancels, drains), max_size=40)


def copy_of(state: State) -> Projection:
    checkpoint = decode_checkpoint(encode_checkpoint(state))
    assert checkpoint is not None
    return Projection(checkpoint.state)


def checked_turn(made: World) -> None:
    """A page, and all that must be true of and after it."""
    before = copy_of(made.state)
    made.turn(after_ms=SECOND_MS)
    check_each_assignment(before, made.pages[-1])
    check_no_slot_is_left_idle(made.state, "default")
    anew = copy_of(made.state)
    scheduler = Scheduler(anew)
    anew.touched.everything = True
    assert scheduler.decide(made.at) == []


def act(made: World, kind: str, *what: object) -> None:
    """One thing that users or workers do."""
    match kind, what:
        case "submit", (str(organization), str(workload_class), int(slots), int(limit_ms)):
            made.submit(
                organization, workload_class=workload_class, slots=slots, time_limit_ms=limit_ms
            )
        case "end", (int(index),):
            held = [w.occupant.job for w in made.state.workers.values() if w.occupant is not None]
            if held:
                job = held[index % len(held)]
                made.start(job)
                made.finish(job)
        case "cancel", (int(index),):
            waiting = [job for job in made.state.jobs.values() if job.state is JobState.PENDING]
            if waiting:
                made.cancel(waiting[index % len(waiting)].id)
        case "drain", _:
            made.drain("n2")
        case "undrain", _:
            made.undrain("n2")


@settings(deadline=None)
@given(policy=policies, other=policies, first=steps, then=steps)
def test_shares_hold_on_any_work(
    policy: Policy, other: Policy, first: list[tuple[object]], then: list[tuple[object]]
) -> None:
    """Also after the policy was replaced; and the second reader comes to the same fair state."""
    made = World(policy)
    made.node_up("n1", 3)
    made.node_up("n2", 2)
    made.turn()
    for step in first:
        act(made, *step)  # type: ignore[arg-type]
        checked_turn(made)
    made.apply_policy(other)
    checked_turn(made)
    for step in then:
        act(made, *step)  # type: ignore[arg-type]
        checked_turn(made)
    check_the_second_reader_agrees(made)
