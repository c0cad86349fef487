"""What waits were made of: cases worked by hand, and that the parts sum to the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger import events as e
from ledger.arrays import member_id
from ledger.checkpoint import decode_checkpoint, encode_checkpoint
from ledger.events import ArraySpec
from ledger.names import JobId
from ledger.policy import FlowAgreement, Limits, Policy, Pool
from ledger.state import State
from scheduling.followed import Followed
from scheduling.waits import Wait, wait_ms
from tests.world import START_MS, World, sha256_of, world_of_one_node

SECOND_MS = 1_000


def follow(world: World, job: JobId, state: State | None = None) -> Wait:
    """The wait of a job, as of the world's last page."""
    followed = Followed(state or State(ledger="test"))
    wait = Wait(followed, job)
    for page in world.pages[followed.state.seq + 1 :]:
        followed.fold(page, sha256_of(page))
    assert followed.state == world.state
    return wait


def parts(world: World, job: JobId) -> dict[str, int]:
    """Seconds by heading."""
    found = follow(world, job).breakdown(world.at)
    return {heading.value: part_ms // SECOND_MS for heading, part_ms in found.items()}


def end(world: World, job: JobId) -> None:
    """The job ends now and what waits is looked at."""
    world.finish(job)
    world.turn()


def start(world: World, job: JobId) -> None:
    world.start(job)
    world.turn()


def test_earlier_jobs_then_others_turn_then_the_start() -> None:
    """One slot. At 0 s a1 takes it, then b, a2, a3 come to wait (with equal tags, so that b
    is first). At 10 s a1 ends and b goes, at 30 s b ends and a2 goes, at 60 s a2 ends, a3 goes
    and starts at 64 s.

    a3: until 30 s a2 is before it, until 60 s only a2's run is (nothing of its own flow
    waits before it), 4 s to start.
    """
    world = world_of_one_node()
    first = world.submit("a", estimate_ms=10_000)
    world.turn()
    other, second, third = world.submit("b"), world.submit("a"), world.submit("a")
    start(world, first)
    world.at += 10 * SECOND_MS
    end(world, first)
    assert world.assigned() == [first, other]
    world.at += 20 * SECOND_MS
    end(world, other)
    world.at += 30 * SECOND_MS
    end(world, second)
    world.turn(after_ms=4 * SECOND_MS)
    start(world, third)
    assert parts(world, third) == {
        "earlier jobs of its flow": 30,
        "others' turn": 30,
        "assigned, not started": 4,
    }
    assert wait_ms(world.job(third), world.at) == 64 * SECOND_MS


def test_a_full_limit_of_its_own_from_when_it_was_passed_over_until_it_was_freed() -> None:
    """Two slots, a may have one: a2 is passed over at once and freed when a1 ends, at 7 s."""
    policy = Policy(
        flows={"a/batch/default": FlowAgreement(limits=Limits(slots=1))},  # type: ignore[dict-item]
        pools={"default": Pool()},
    )
    world = world_of_one_node(2, policy)
    first, second = world.submit("a"), world.submit("a")
    world.turn()
    world.turn(after_ms=7 * SECOND_MS)
    end(world, first)
    world.at += SECOND_MS
    start(world, second)
    assert parts(world, second) == {"own limit": 7, "assigned, not started": 1}


def test_a_member_waits_as_its_array_does_before_it_begins() -> None:
    """Two slots: for 4 s others have both, for 6 s the other member is as many as may run."""
    world = world_of_one_node(2)
    others = [world.submit("b"), world.submit("b")]
    world.turn()
    array = world.submit(array=ArraySpec(ranges=((0, 1, 1),), at_once=1))
    world.turn()
    world.at += 4 * SECOND_MS
    for job in others:
        end(world, job)
    world.at += 6 * SECOND_MS
    end(world, member_id(array, 0))
    second = member_id(array, 1)
    assert parts(world, second) == {"others' turn": 4, "limit of its array": 6}


def test_a_limit_of_the_pool_holds_the_head_of_each_flow() -> None:
    """Two slots, of which the pool may use one; b waits 9 s for it, beside a free slot."""
    world = world_of_one_node(2, Policy(pools={"default": Pool(limits=Limits(slots=1))}))
    first, second = world.submit("a"), world.submit("b")
    world.turn()
    assert world.assigned() == [first]
    world.turn(after_ms=9 * SECOND_MS)
    end(world, first)
    assert parts(world, second) == {"limit of the pool": 9}


def test_held_then_without_a_serving_slot_then_others_turn() -> None:
    """Held for 3 s; then its only node is stale for 5 s; then it is busy for 2 s."""
    world = world_of_one_node()
    busy = world.submit("b")
    world.turn()
    start(world, busy)
    job = world.submit("a", held=True)
    world.turn()
    world.release(job)
    world.node_is("n1", e.Liveness.STALE)
    world.turn(after_ms=3 * SECOND_MS)
    world.node_is("n1", e.Liveness.FRESH)
    world.turn(after_ms=5 * SECOND_MS)
    world.at += 2 * SECOND_MS
    end(world, busy)
    assert parts(world, job) == {"held or put off": 3, "no serving slot": 5, "others' turn": 2}


def test_between_the_last_page_and_the_election_nobody_dispatched() -> None:
    """It is submitted 4 s after the last page; 6 s later a leader is elected, and it goes."""
    world = world_of_one_node()
    world.at += 4 * SECOND_MS
    job = world.submit("a")
    world.turn(after_ms=6 * SECOND_MS, elected=True)
    world.at += 2 * SECOND_MS
    start(world, job)
    assert parts(world, job) == {"no dispatcher": 6, "assigned, not started": 2}


def test_a_job_that_waits_while_the_leader_is_away() -> None:
    """Busy for 5 s, then no page for 20 s until the election, then busy for 1 s more."""
    world = world_of_one_node()
    busy, job = world.submit("b"), world.submit("a")
    world.turn()
    start(world, busy)
    world.turn(after_ms=5 * SECOND_MS)
    world.turn(after_ms=20 * SECOND_MS, elected=True)
    world.at += SECOND_MS
    end(world, busy)
    assert parts(world, job) == {"others' turn": 6, "no dispatcher": 20}


def test_before_its_page_it_is_not_yet_posted() -> None:
    world = world_of_one_node()
    job = world.submit("a")
    world.turn(after_ms=2 * SECOND_MS)
    assert parts(world, job) == {"not yet posted": 2}


def test_what_is_put_off_before_its_next_attempt_is_no_wait_for_the_first() -> None:
    """The wait ends with the first start, 1 s after the submit, whatever comes then."""
    world = world_of_one_node()
    job = world.submit("a", retries=3)
    world.turn()
    world.at += SECOND_MS
    start(world, job)
    world.at += SECOND_MS
    world.finish(job, rc=1)
    world.turn()
    world.turn(after_ms=60 * SECOND_MS)
    assert len(world.job(job).attempts) == 2
    assert parts(world, job) == {"assigned, not started": 1}


def test_the_last_assignment_is_kept_with_the_clock_that_it_set() -> None:
    """The first dispatch of all: start tag 0, finish tag 1,000 ms, to which wfq sets V."""
    world = world_of_one_node()
    job = world.submit("a", estimate_ms=1_000)
    world.turn()
    assigned = follow(world, job).assigned
    assert assigned is not None
    assert assigned.at == START_MS
    assert assigned.decision.start_tag == 0
    assert assigned.decision.finish_tag == assigned.virtual_time == 1_000 * 1_000_000


def test_a_block_is_known_from_its_page_on() -> None:
    world = world_of_one_node()
    world.turn(after_ms=SECOND_MS)
    job = world.submit("a", worker="n2-cpu0")
    world.turn()
    world.turn(after_ms=SECOND_MS)
    assert follow(world, job).blocked_since(world.job(job).placed.flow) == START_MS + SECOND_MS


HAPPENINGS = (
    "submit", "submit", "submit held", "start", "end", "fail", "cancel", "release", "hold",
    "lose", "retry", "stale", "fresh", "elect", "limit", "no limit", "nothing",
)  # fmt: skip
steps = st.lists(
    st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 9), st.integers(0, 5_000)),
    min_size=5,
    max_size=60,
)


def play(world: World, what: str, index: int, jobs: list[JobId]) -> None:
    """One thing happens, where it can."""
    job = jobs[index % len(jobs)] if jobs else None
    last = world.state.jobs[job].last if job is not None and job in world.state.jobs else None
    runs = last is not None and last.outcome == "" and last.phase.name in ("ASSIGNED", "STARTED")
    match what:
        case "submit" | "submit held":
            organization, retries = "abc"[index % 3], index % 2
            jobs.append(world.submit(organization, held=what != "submit", retries=retries))
        case "cancel" | "hold" | "release" | "retry" if job is not None:
            getattr(world, what)(job)
        case "start" if runs and job is not None:
            world.start(job)
        case "end" | "fail" if runs and job is not None:
            world.finish(job, rc=int(what == "fail"))
        case "lose" if runs and job is not None:
            world.lost(job, ran=bool(index % 2))
        case "stale" | "fresh":
            world.node_is("n1", e.Liveness(what))
        case "limit" | "no limit":
            slots = int(what == "limit")
            world.apply_policy(
                Policy(
                    flows={"a/batch/default": FlowAgreement(limits=Limits(slots=slots))},  # type: ignore[dict-item]
                    pools={"default": Pool(limits=Limits(slots=2 * slots))},
                )
            )


@given(steps=steps)
def test_the_parts_of_every_wait_sum_to_it_wherever_the_fold_began(
    steps: list[tuple[str, int, int]],
) -> None:
    world = world_of_one_node(3)
    jobs: list[JobId] = []
    saved: list[tuple[int, bytes]] = []
    for what, index, after_ms in steps:
        saved.append((world.at, encode_checkpoint(world.state)))
        play(world, what, index, jobs)
        world.turn(after_ms=after_ms, elected=what == "elect")
    for job in jobs:
        wait = follow(world, job)
        found = wait.breakdown(world.at)
        assert wait.job is not None
        assert sum(found.values()) == wait_ms(wait.job, world.at)
        assert all(part_ms > 0 for part_ms in found.values())
        before = [body for at, body in saved if at < wait.job.submitted_at]
        if before:
            checkpoint = decode_checkpoint(before[-1])
            assert checkpoint is not None
            assert follow(world, job, checkpoint.state).breakdown(world.at) == found
