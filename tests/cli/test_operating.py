"""drain --now, move, retry, cancel, --signal: what is said, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.events import LEAD_SIGNALS, JobState, Liveness, NodeSeen
from ledger.names import JobId, NodeName
from ledger.state import State
from roles.liveness import LivenessJudge
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

JOB = JobId("q7m2k4x3")


def state_of(fleet: Fleet, job: str) -> JobState:
    return fleet.state.jobs[JobId(job)].state


@pytest.fixture
def serving(fleet: Fleet) -> Fleet:
    """n1 serves ``default``, n2 ``other``; a slot each."""
    fleet.ready("n1-cpu0")
    fleet.ready("n2-cpu0", pool="other")
    fleet.post()
    return fleet


def queued(fleet: Fleet) -> None:
    fleet.submit(JOB)


def assigned(fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.submit(JOB)
    fleet.post()


def running(fleet: Fleet) -> None:
    assigned(fleet)
    fleet.start(JOB)
    fleet.post()


def ended(fleet: Fleet) -> None:
    running(fleet)
    fleet.finish(JOB, 3)
    fleet.post()


def silence(monkeypatch: pytest.MonkeyPatch, node: NodeName) -> None:
    """From here on the leader takes the node for gone."""

    def judge(self: LivenessJudge, state: State) -> list[NodeSeen]:
        known = state.nodes[node].liveness
        return [] if known is Liveness.GONE else [NodeSeen(node=node, liveness=Liveness.GONE)]

    monkeypatch.setattr(LivenessJudge, "judge", judge)


# --- cancel, in every state


def drained_now(fleet: Fleet, gpuq: Gpuq) -> None:
    running(fleet)
    gpuq("drain", "n1", "--now")
    fleet.post()


@pytest.mark.parametrize(
    ("stands", "said"),
    [
        (queued, "cancelled"),
        (assigned, "cancelled, and stopped if n1-cpu0 has begun it by now"),
        (running, "stop requested: TERM on n1-cpu0, KILL after 2 min"),
        (ended, "already ended as FAILED"),
    ],
)
def test_a_cancel_says_one_thing_in_every_state(
    gpuq: Gpuq, fleet: Fleet, stands: Callable[[Fleet], None], said: str
) -> None:
    stands(fleet)
    result = gpuq("cancel", JOB, "--grace", "2m", "--reason", "enough")
    assert (result.rc, result.out, result.err) == (0, f"{JOB} job: {said}\n", "")
    again = gpuq("cancel", JOB)
    assert again.rc == 0
    if stands is queued:
        assert again.out == f"{JOB} job: already ended as CANCELLED\n"
    elif stands is not ended:
        assert again.out.startswith(f"{JOB} job: stop already requested by ")
    fleet.post()
    if stands is running:
        fleet.finish(JOB, 143, outcome="stopped")
    fleet.post()
    assert state_of(fleet, JOB) is (JobState.FAILED if stands is ended else JobState.CANCELLED)


def test_a_cancel_of_what_a_drain_stops_says_that_it_ends(gpuq: Gpuq, fleet: Fleet) -> None:
    drained_now(fleet, gpuq)
    assert gpuq("cancel", JOB).out == (
        f"{JOB} job: cancelled: what stops it now (node n1 is drained) ends it\n"
    )
    fleet.post()
    fleet.finish(JOB, 143, outcome="stopped")
    fleet.post()
    assert state_of(fleet, JOB) is JobState.CANCELLED


# --- drain


def test_a_drain_says_what_goes_on_and_what_is_stopped(gpuq: Gpuq, fleet: Fleet) -> None:
    running(fleet)
    assert gpuq("drain", "n1").out == f"n1: takes no new jobs; what runs there goes on: {JOB}\n"
    fleet.post()
    by = gpuq("nodes", "--json").json["nodes"][0]["drained_by"]
    assert by
    assert f"drained, its jobs end (by {by})" in gpuq("nodes").out
    assert not gpuq("nodes", "--json").json["nodes"][0]["empty"]
    result = gpuq("drain", "n1", "--now", "--reason", "new disk")
    assert result.out == f"n1: takes no new jobs; stops {JOB}, to run again elsewhere\n"
    fleet.post()
    assert state_of(fleet, JOB) is JobState.STOPPING
    assert gpuq("status", "--json", JOB).json["why"] == "node n1 is drained"
    fleet.finish(JOB, 143, outcome="stopped")
    fleet.post()
    assert state_of(fleet, JOB) is JobState.PENDING
    assert "drained, empty (new disk)" in gpuq("nodes").out
    assert gpuq("nodes", "--json").json["nodes"][0]["empty"]
    assert gpuq("drain", "n1").out == "n1: takes no new jobs; nothing runs there\n"


def test_a_drain_names_what_is_pinned_there(gpuq: Gpuq, serving: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "--worker", "n1-cpu0", "--", "a").ids
    said = gpuq("drain", "n1").err
    assert said == (
        f"pinned there, and waiting for it: {job}; 'gpuq move --from n1' sends those elsewhere "
        "that have not begun\n"
    )


# --- move


def test_a_waiting_job_moves_and_keeps_what_was_asked_for(gpuq: Gpuq, serving: Fleet) -> None:
    gpuq("drain", "n1")
    (job,) = gpuq("submit", "-q", "--", "a").ids
    assert gpuq("move", job, "--pool", "other").out == f"{job} a: waits for pool other\n"
    assert gpuq("move", job, "--pool", "other").out == f"{job} a: waits for pool other already\n"
    serving.post()
    shown = gpuq("status", "--json", job).json
    assert (shown["pool"], shown["submitted_pool"]) == ("other", "default")
    assert shown["workers"] == ["n2-cpu0"]
    assert "submitted to:  pool default\n" in gpuq("status", job).out


def test_an_assigned_job_is_moved_by_taking_it_back(gpuq: Gpuq, serving: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "--", "a").ids
    serving.post()
    assert gpuq("move", job, "--worker", "n2-cpu0").out == (
        f"{job} a: moves to n2-cpu0 in pool other, unless n1-cpu0 has begun it by now\n"
    )
    serving.post()
    serving.post()
    (now,) = serving.state.jobs[JobId(job)].attempts[1:]
    assert now.slots == ("n2-cpu0",)


def test_all_that_waits_for_a_node_moves_at_once(gpuq: Gpuq, serving: Fleet) -> None:
    assert gpuq("move", "--from", "n1", "--pool", "other").out == (
        "n1: nothing that has not begun is pinned or assigned there\n"
    )
    (taken,) = gpuq("submit", "-q", "--", "a").ids
    serving.post()
    (pinned,) = gpuq("submit", "-q", "--worker", "n1-cpu0", "--", "b").ids
    (free,) = gpuq("submit", "-q", "--", "c").ids
    serving.post()
    assert gpuq("move", "--from", "n1", "--pool", "other").out.splitlines() == [
        f"{taken} a: moves to pool other, unless n1-cpu0 has begun it by now",
        f"{pinned} b: waits for pool other",
    ]
    for _ in range(3):
        serving.post()
    places = {job: serving.state.jobs[JobId(job)].placed for job in (taken, pinned, free)}
    assert [place.pool for place in places.values()] == ["other", "other", "default"]
    assert not any(place.worker for place in places.values())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--pool", "other"], "say which jobs: name them, or all of a node with --from NODE"),
        (
            [JOB, "--from", "n1", "--pool", "other"],
            "say which jobs: name them, or all of a node with --from NODE",
        ),
        ([JOB], "say where to: --worker, --pool or both"),
        ([JOB, "--worker", "n9-cpu0"], "no worker 'n9-cpu0'; workers are n1-cpu0"),
        (["--from", "n9", "--pool", "other"], "no node 'n9'; nodes are n1"),
        (
            [JOB, "--worker", "n1-cpu0", "--pool", "other"],
            f"{JOB} cannot move there: n1-cpu0 serves pool 'default', not 'other'",
        ),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    gpuq: Gpuq, fleet: Fleet, args: list[str], said: str
) -> None:
    assigned(fleet)
    result = gpuq("move", *args)
    assert (result.rc, result.out, result.err) == (64, "", f"gpuq: {said}\n")


def test_what_has_begun_or_ended_does_not_move(gpuq: Gpuq, fleet: Fleet) -> None:
    running(fleet)
    assert gpuq("move", JOB, "--pool", "other").err == (
        f"gpuq: {JOB} runs on n1-cpu0: only a job that waits can move; 'gpuq cancel {JOB}' ends "
        "it, 'gpuq drain n1 --now' runs it elsewhere\n"
    )
    fleet.finish(JOB, 1)
    fleet.post()
    assert gpuq("move", JOB, "--pool", "other").err == (
        f"gpuq: {JOB} ended as FAILED: only a job that waits can move\n"
    )


def test_nothing_moves_where_one_of_the_jobs_cannot(gpuq: Gpuq, fleet: Fleet) -> None:
    running(fleet)
    (other,) = gpuq("submit", "-q", "--", "a").ids
    assert gpuq("move", other, JOB, "--pool", "other").rc == 64
    fleet.post()
    assert fleet.state.jobs[JobId(other)].moved is None


# --- retry


def test_a_failed_job_waits_again_under_its_id(gpuq: Gpuq, fleet: Fleet) -> None:
    ended(fleet)
    assert gpuq("retry", JOB).out == f"{JOB} job: waits again, for attempt 2\n"
    fleet.post()
    assert state_of(fleet, JOB) is JobState.ASSIGNED
    again = gpuq("retry", JOB)
    assert (again.rc, again.err) == (
        64,
        f"gpuq: {JOB} is ASSIGNED: only an ended job can be retried\n",
    )
    fleet.start(JOB)
    fleet.finish(JOB, 0)
    fleet.post()
    done = gpuq("retry", JOB)
    assert (done.rc, done.err) == (
        64,
        f"gpuq: {JOB} ended as COMPLETED: submit it again to run it again\n",
    )


def test_a_retry_of_a_lost_job_says_where_it_may_still_run(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(fleet)
    silence(monkeypatch, NodeName("n1"))
    fleet.post()
    assert state_of(fleet, JOB) is JobState.NODE_FAIL
    result = gpuq("retry", JOB)
    assert result.out == f"{JOB} job: waits again, for attempt 2\n"
    assert result.err == (
        f"gpuq: {JOB} may still run on n1-cpu0, which is silent: should it come back first, the "
        "job goes on there\n"
    )


def test_a_cancel_of_a_lost_job_keeps_it_from_going_on(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(fleet)
    silence(monkeypatch, NodeName("n1"))
    fleet.post()
    assert gpuq("cancel", JOB).out == (
        f"{JOB} job: cancelled: it does not go on when its node is back\n"
    )
    fleet.post()
    assert state_of(fleet, JOB) is JobState.CANCELLED


# --- a signal before the time limit


@pytest.mark.parametrize(
    ("text", "signal", "lead_ms"),
    [
        ("USR1@120", "USR1", 120_000),
        ("sigusr2", "USR2", 60_000),
        ("B:TERM@5", "TERM", 5_000),
        ("10@300", "USR1", 300_000),
    ],
)
def test_a_signal_before_the_time_limit_is_read_as_slurm_reads_it(
    gpuq: Gpuq, fleet: Fleet, text: str, signal: str, lead_ms: int
) -> None:
    (job,) = gpuq("submit", "-q", "-t", "1h", "--signal", text, "--", "a").ids
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    assert (spec.signal, spec.lead_ms) == (signal, lead_ms)


def test_the_numbers_of_signals_are_those_of_linux() -> None:
    """From signal(7), the column for x86 and ARM."""
    manual = {1: "HUP", 2: "INT", 3: "QUIT", 10: "USR1", 12: "USR2", 14: "ALRM", 15: "TERM"}
    manual |= {18: "CONT", 23: "URG"}
    assert {number: name for name, number in LEAD_SIGNALS.items()} == manual


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--signal", "USR1@120"], "--signal comes before a time limit: give one with --time"),
        (
            ["-t", "2m", "--signal", "USR1@120"],
            "--signal USR1@120 would come before the job begins: its limit is 2 min",
        ),
        (
            ["-t", "1h", "--signal", "KILL@9"],
            f"no signal 'KILL'; signals are {', '.join(LEAD_SIGNALS)}",
        ),
        (
            ["-t", "1h", "--signal", "R:USR1@9"],
            "'R:USR1@9' is not a signal: say NAME@SECONDS, such as USR1@120",
        ),
        (
            ["-t", "1h", "--signal", "USR1@0"],
            "'USR1@0': at the time limit itself TERM is sent anyway",
        ),
    ],
)
def test_a_signal_that_cannot_be_is_refused(
    gpuq: Gpuq, fleet: Fleet, args: list[str], said: str
) -> None:
    result = gpuq("submit", *args, "--", "a")
    assert (result.rc, result.err) == (64, f"gpuq: {said}\n")


def test_explain_shows_the_signal_and_the_grace(gpuq: Gpuq, fleet: Fleet) -> None:
    args = ["submit", "-n", "--explain", "-t", "1h", "--signal", "USR1@120"]
    lines = {line.split()[0]: line.split()[1:] for line in gpuq(*args, "--", "a").err.splitlines()}
    assert lines["signal"] == ["USR1", "2", "min", "before", "the", "limit", "--signal"]
    assert lines["grace"] == ["30", "s", "default"]
    args += ["--grace", "2m"]
    lines = {line.split()[0]: line.split()[1:] for line in gpuq(*args, "--", "a").err.splitlines()}
    assert lines["grace"] == ["2", "min", "--grace"]
