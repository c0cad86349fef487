"""An array is scheduled as its members would be, were each submitted by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import events as e
from ledger.arrays import index_at, member_id, member_of
from ledger.events import ArraySpec, Dependency, JobState
from ledger.names import FlowId, JobId
from ledger.policy import DISCIPLINES, Limits, Organization, Policy, Pool
from ledger.state import State
from tests.world import World, job_id, running_job, world_of_one_node


def of(count: int, at_once: int = 0) -> ArraySpec:
    return ArraySpec(ranges=((0, count - 1, 1),), at_once=at_once)


def counts(world: World, array: JobId) -> tuple[int, int, dict[JobState, int]]:
    """Left, underway, ended by state."""
    job = world.job(array)
    assert job.array is not None
    ended = {state: count for state, count in job.array.ended.items() if count}
    return job.array.left, len(job.array.open), ended


def run_all(world: World, rc: int = 0) -> None:
    """Everything that is assigned starts and ends, until nothing is."""
    while assigned := [
        job.id for job in world.state.jobs.values() if job.state is JobState.ASSIGNED
    ]:
        for job in assigned:
            world.start(job)
            world.finish(job, rc=rc)
        world.turn(after_ms=1_000)


# -- the same schedule

Submit = tuple[str, int, int, int]
"""Organization, how many, slots, estimate in ms."""

SUBMITS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.integers(1, 2), st.integers(1, 5_000)),
    min_size=1,
    max_size=6,
)


def played(world: World, submits: list[Submit], ends: list[int], *, as_arrays: bool) -> World:
    """Each turn one more is submitted, and one of the running jobs ends."""
    world.node_up("n1", 3)
    world.turn()
    for number in range(len(submits) + 60):
        if number < len(submits):
            organization, count, slots, estimate_ms = submits[number]
            more = {"slots": slots, "estimate_ms": estimate_ms, "time_limit_ms": 9_000}
            if as_arrays:
                world.submit(organization, array=of(count), **more)  # type: ignore[arg-type]
            else:
                for _ in range(count):
                    world.submit(organization, **more)  # type: ignore[arg-type]
        running = [job for job in world.state.jobs.values() if job.state is JobState.ASSIGNED]
        if running:
            job = sorted(running, key=lambda job: job.arrival)[
                ends[number % len(ends)] % len(running)
            ]
            world.start(job.id)
            world.finish(job.id)
        world.turn(after_ms=700)
    return world


def schedule(world: World) -> list[tuple[object, ...]]:
    """What was decided and when, with each job as the place of its arrival."""
    told: list[tuple[object, ...]] = []
    for page in world.pages:
        for decision in page.decisions:
            match decision:
                case e.AttemptAssigned():
                    arrival = world.job(decision.job).arrival
                    tags = (decision.start_tag, decision.finish_tag, decision.weight)
                    told.append((page.at, arrival, decision.slots, tags, decision.backfill))
                case e.SlotsReserved() | e.FlowBlocked() | e.FlowFreed():
                    told.append((page.at, type(decision).__name__))
        told.append((page.at, page.fair))
    return told


@settings(max_examples=60, deadline=None)
@given(
    discipline=st.sampled_from(DISCIPLINES),
    limit=st.sampled_from((0, 2)),
    submits=SUBMITS,
    ends=st.lists(st.integers(0, 5), min_size=1, max_size=9),
)
def test_an_array_gives_the_schedule_the_tags_and_the_fair_state_of_as_many_jobs(
    discipline: str, limit: int, submits: list[Submit], ends: list[int]
) -> None:
    policy = Policy(
        organizations={"a": Organization(limits=Limits(slots=limit))},
        pools={"default": Pool(discipline=discipline)},
    )
    jobs = played(World(policy), submits, ends, as_arrays=False)
    arrays = played(World(policy), submits, ends, as_arrays=True)
    assert schedule(arrays) == schedule(jobs)
    assert sum(row[1].__class__ is int for row in schedule(jobs)) == sum(
        n for _, n, _, _ in submits
    )


# -- members


def test_an_array_is_one_fact_and_a_member_is_a_job_once_it_begins() -> None:
    world = world_of_one_node(slots=2)
    array = world.submit(array=of(10_000), env={"SEED": "7"}, key="k", name="train")
    world.turn()
    assert world.assigned() == [member_id(array, 0), member_id(array, 1)]
    assert len(world.state.jobs) == 3
    assert counts(world, array) == (9_998, 2, {})
    member = world.job(member_id(array, 1)).spec
    assert member.env == {"SEED": "7", "GPUQ_ARRAY_ID": array, "GPUQ_ARRAY_INDEX": "1"}
    assert (member.name, member.array, member.key) == ("train", None, "")


def test_members_begin_in_the_order_of_their_indices_and_get_the_values_of_their_sweep() -> None:
    world = world_of_one_node(slots=6)
    sweep = (("lr", ("1e-3", "1e-4")), ("seed", ("0", "1", "2")))
    array = world.submit(array=ArraySpec(ranges=((0, 5, 1),), sweep=sweep))
    world.turn()
    values = [world.job(member_id(array, index)).spec.env for index in range(6)]
    assert [(each["GPUQ_lr"], each["GPUQ_seed"]) for each in values] == [
        ("1e-3", "0"), ("1e-3", "1"), ("1e-3", "2"), ("1e-4", "0"), ("1e-4", "1"), ("1e-4", "2"),
    ]  # fmt: skip


def test_an_array_ends_completed_once_all_its_members_have() -> None:
    world = world_of_one_node(slots=2)
    array = world.submit(array=ArraySpec(ranges=((1, 1, 1), (5, 9, 2))))
    world.turn()
    run_all(world)
    assert world.assigned() == [member_id(array, index) for index in (1, 5, 7, 9)]
    assert world.job(array).state is JobState.COMPLETED
    assert counts(world, array) == (0, 0, {JobState.COMPLETED: 4})


def test_an_array_of_which_a_member_failed_is_failed_and_a_retry_runs_only_that() -> None:
    world = world_of_one_node(slots=1)
    array = world.submit(array=of(3))
    world.turn()
    world.finish(member_id(array, 0), rc=1)
    world.turn()
    run_all(world)
    assert (world.job(array).state, world.job(array).reason) == (JobState.FAILED, "1 FAILED")
    world.retry(array)
    world.turn()
    assert world.job(array).state is JobState.RUNNING
    assert world.assigned()[3:] == [member_id(array, 0)]
    run_all(world)
    assert world.job(array).state is JobState.COMPLETED


# -- the limit of its own


def test_no_more_than_its_limit_are_underway_and_others_of_its_flow_pass() -> None:
    world = world_of_one_node(slots=4)
    array = world.submit(array=of(5, at_once=2))
    other = world.submit()
    world.turn()
    assert world.assigned() == [member_id(array, 0), member_id(array, 1), other]
    world.finish(member_id(array, 1))
    world.turn()
    assert world.assigned()[3:] == [member_id(array, 2)]
    run_all(world)
    assert counts(world, array) == (0, 0, {JobState.COMPLETED: 5})


def test_an_array_that_stands_back_keeps_its_pool_from_forgetting_debts() -> None:
    """Between two members nothing runs, and what waits is not offered: yet b is not idle."""
    world = world_of_one_node(slots=1)
    first = world.submit("a", estimate_ms=50_000)
    world.turn()
    array = world.submit("b", array=of(3, at_once=1))
    world.finish(first)
    world.turn(after_ms=50_000)
    clock = world.state.pools["default"]
    assert (clock.waiting, clock.running) == (2, 1)
    before = clock.virtual_time
    world.finish(member_id(array, 0))
    world.turn()
    assert clock.virtual_time - before <= 1_000 * 1_000_000  # one estimate, and no amnesty
    assert world.state.flows["b/batch/default"].waiting == 0  # type: ignore[index]


# -- requests


def test_a_cancel_of_the_array_ends_what_is_left_at_once_and_stops_the_others() -> None:
    world = world_of_one_node(slots=1)
    array = world.submit(array=of(1_000))
    world.turn()
    member = member_id(array, 0)
    world.start(member)
    world.turn()
    world.cancel(array)
    decided = world.turn()
    assert [(d.job, d.reason) for d in decided if isinstance(d, e.StopOrdered)] == [
        (member, "cancelled")
    ]
    assert world.job(array).state is JobState.RUNNING
    world.finish(member, rc=143, outcome="stopped")
    world.turn()
    assert (world.job(array).state, world.job(array).reason) == (JobState.CANCELLED, "by test")
    assert world.assigned() == [member]


def test_a_member_that_has_not_begun_can_be_cancelled_and_held_alone() -> None:
    world = world_of_one_node(slots=1)
    array = world.submit(array=of(5))
    world.turn()
    world.cancel(member_id(array, 2))
    world.hold(member_id(array, 3))
    world.cancel(member_id(array, 7))
    world.turn()
    run_all(world)
    assert world.assigned() == [member_id(array, index) for index in (0, 1, 4)]
    assert world.job(array).state is JobState.RUNNING
    world.release(member_id(array, 3))
    world.turn()
    run_all(world)
    assert world.job(array).state is JobState.CANCELLED
    ended = {JobState.COMPLETED: 4, JobState.CANCELLED: 1}
    assert counts(world, array) == (0, 0, ended)
    assert not world.state.pending_cancels


def test_a_cancel_of_a_member_that_overtakes_the_submit_is_kept() -> None:
    world = world_of_one_node(slots=2)
    array = JobId("aaaaaaaa")
    world.cancel(member_id(array, 1))
    world.turn()
    assert world.submit(array=of(3)) == array
    world.turn()
    assert world.assigned() == [member_id(array, 0), member_id(array, 2)]


def test_a_held_array_begins_nothing_until_its_release() -> None:
    world = world_of_one_node(slots=1)
    array = world.submit(array=of(2))
    world.turn()
    world.hold(array)
    world.turn()
    run_all(world)
    assert world.assigned() == [member_id(array, 0)]
    assert world.job(array).state is JobState.HELD
    world.release(array)
    world.turn()
    run_all(world)
    assert world.job(array).state is JobState.COMPLETED


def test_a_deadline_ends_what_is_left() -> None:
    world = world_of_one_node(slots=1)
    array = world.submit(array=of(3), deadline_at=world.at + 5_000)
    world.turn()
    world.start(member_id(array, 0))
    world.turn(after_ms=5_000)
    assert counts(world, array)[:2] == (2, 1)
    assert world.job(array).state is JobState.RUNNING
    world.finish(member_id(array, 0), outcome="deadline", rc=143)
    world.turn()
    assert world.job(array).state is JobState.EXPIRED
    assert world.job(array).reason == "its deadline has passed"


def test_a_queue_that_is_too_long_with_all_members_rejects_the_array() -> None:
    policy = Policy(organizations={"a": Organization(limits=Limits(queue_length=3))})
    world = world_of_one_node(policy=policy)
    world.submit()
    array = world.submit(array=of(3))
    world.turn()
    assert world.job(array).state is JobState.REJECTED
    assert world.job(array).reason == "organization a has 1 jobs waiting, at most 3 may"


def test_what_is_no_array_is_rejected_and_a_member_cannot_be_submitted() -> None:
    world = world_of_one_node()
    for ranges in (((0, 5, 0),), ((3, 1, 1),), ((1, 5, 1), (5, 7, 1)), (), ((0, 100_000, 1),)):
        job = world.submit(array=ArraySpec(ranges=ranges))
        world.turn()
        assert world.job(job).state is JobState.REJECTED, ranges
    world.fact(e.Submitted(at=world.at, job=e.JobSpec(
        id=JobId("aaaaaaaa_1"), name="", organization="a", workload_class="batch",
        pool="default", user="u",
    )), "cli-a")  # fmt: skip
    world.turn()
    assert JobId("aaaaaaaa_1") not in world.state.jobs


# -- memory


def test_members_are_archived_as_other_jobs_are_and_the_array_goes_on_counting() -> None:
    world = world_of_one_node(slots=50)
    array = world.submit(array=of(1_400))
    world.turn()
    run_all(world)
    archived = [member_of(job) for job in world.state.archive]
    assert len(archived) >= 250
    assert world.job(array).state is JobState.COMPLETED
    assert counts(world, array) == (0, 0, {JobState.COMPLETED: 1_400})
    folded: State = world.fold().state
    assert folded == world.state
    assert index_at(of(1_400), 1_399) == 1_399


# -- one that stands aside


def after(job: JobId, end: str = "ok") -> tuple[Dependency, ...]:
    return (Dependency(job=job, end=end),)


def waiting(world: World) -> tuple[int, int]:
    """Jobs that wait in the flow of organization b, and in the pool."""
    flow = world.state.flows.get(FlowId("b/batch/default"))
    return flow.waiting if flow else 0, world.state.pools["default"].waiting


def test_an_array_stands_aside_and_enters_its_queue_as_a_whole() -> None:
    """Four slots, of which the first job has one: nothing but the dependency keeps the array."""
    world = world_of_one_node(4)
    first = running_job(world)
    array = world.submit("b", array=of(3), after=after(first))
    world.turn()
    assert (world.job(array).state, world.job(array).in_queue) == (JobState.PENDING, False)
    assert waiting(world) == (0, 0)
    world.finish(first)
    world.turn()
    assert world.assigned()[1:] == [member_id(array, index) for index in range(3)]


def test_the_members_of_an_array_do_not_wait_again_for_what_it_waited_for() -> None:
    """What ran and was lost goes back to its queue, although the first is tried again by then."""
    world = world_of_one_node(2)
    first = running_job(world)
    array = world.submit("b", array=of(1), after=after(first, "notok"), idempotent=True)
    world.turn()
    world.finish(first, rc=1)
    world.turn()
    world.retry(first)
    world.start(member_id(array, 0))
    world.turn()
    world.lost(member_id(array, 0))
    world.turn()
    assert len(world.job(member_id(array, 0)).attempts) == 2


def test_a_job_waits_until_all_members_have_ended_and_whether_all_completed() -> None:
    world = world_of_one_node(2)
    array = world.submit(array=of(2))
    if_all, anyhow = (world.submit("b", after=after(array, end)) for end in ("ok", "any"))
    world.turn()
    for index, rc in ((0, 0), (1, 3)):
        assert world.job(if_all).state is world.job(anyhow).state is JobState.PENDING
        world.start(member_id(array, index))
        world.finish(member_id(array, index), rc=rc)
        world.turn()
    assert world.job(if_all).reason == f"it waits for afterok:{array}, which ended FAILED"
    assert world.job(anyhow).state is JobState.ASSIGNED


def test_what_ends_an_array_that_stands_aside_ends_its_members_that_do_too() -> None:
    """Member 1 is held by a request, 2 was named only; the job for which they wait fails."""
    world = world_of_one_node(1)
    first = running_job(world)
    array = world.submit("b", array=of(4), after=after(first))
    world.turn()
    world.hold(member_id(array, 1))
    world.move(member_id(array, 2), "elsewhere")
    world.turn()
    assert world.job(member_id(array, 1)).state is JobState.HELD
    assert world.job(member_id(array, 2)).aside_since is not None
    assert waiting(world) == (0, 0)
    world.finish(first, rc=1)
    world.turn()
    never = JobState.DEPENDENCY_NEVER
    ended = [world.job(job).state for job in (array, member_id(array, 1), member_id(array, 2))]
    assert ended == [never, never, never]


def test_a_member_named_while_its_array_stands_aside_begins_when_the_others_do() -> None:
    world = world_of_one_node(4)
    first = running_job(world)
    array = world.submit("b", array=of(3), after=after(first))
    world.turn()
    world.hold(member_id(array, 0))
    world.turn()
    world.release(member_id(array, 0))
    world.turn()
    assert not world.job(member_id(array, 0)).in_queue
    world.finish(first)
    world.turn()
    assert world.assigned()[1:] == [member_id(array, index) for index in range(3)]


def test_an_array_that_never_began_waits_anew_when_it_is_retried() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    array = world.submit("b", array=of(2), after=after(first))
    world.turn()
    world.finish(first, rc=1)
    world.turn()
    assert world.job(array).state is JobState.DEPENDENCY_NEVER
    world.retry(first)
    world.retry(array)
    world.turn()
    assert (world.job(array).state, world.job(array).in_queue) == (JobState.PENDING, False)
    world.start(first)
    world.finish(first)
    world.turn()
    assert world.assigned()[2:] == [member_id(array, index) for index in range(2)]


def test_a_circle_through_an_array_ends() -> None:
    world = world_of_one_node(1)
    array = world.submit(array=of(2), after=after(job_id(1)))
    other = world.submit(after=after(array))
    world.turn()
    assert {world.job(array).state, world.job(other).state} == {JobState.DEPENDENCY_NEVER}


def test_no_job_waits_for_a_member() -> None:
    world = world_of_one_node(1)
    array = world.submit(array=of(2))
    job = world.submit(after=after(member_id(array, 1)))
    world.turn()
    assert world.job(job).state is JobState.REJECTED
    assert world.job(job).reason.endswith("a job can wait for a whole array, not for a member")


def test_what_rejects_an_array_does_so_with_a_member_named_in_the_same_page() -> None:
    """What needs two slots of one can never run."""
    world = world_of_one_node(1)
    too_wide = world.submit(array=of(2), slots=2)
    world.hold(member_id(too_wide, 0))
    world.turn()
    rejected = [world.job(job).state for job in (too_wide, member_id(too_wide, 0))]
    assert rejected == [JobState.REJECTED] * 2
