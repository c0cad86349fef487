"""When a GPU takes work: what is left of the last job, who else uses it, what its beat says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.keys import BeatKey, claim_key
from ledger.names import JobId, NodeName, WorkerName
from roles.beats import node_beat
from roles.devices import Reading
from roles.leader import slot_problem
from roles.status import WorkerStatus
from tests.roles.test_leader import Bench, writer
from tests.roles.worker_rig import TIMINGS, WORKER, Rig, a_running_job

GIB = 1 << 30
BUSY = "its GPU is 40 % busy with somebody else's work"


def a_gpu(*, used_gib: float | None = 1, percent: int | None = 0, **more: object) -> Reading:
    used_bytes = None if used_gib is None else int(used_gib * GIB)
    values = {"index": 0, "memory_used_bytes": used_bytes, "utilisation_percent": percent}
    return Reading(**values | more)  # type: ignore[arg-type]


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.gpu = a_gpu()
    return made


def end(rig: Rig, job: JobId) -> None:
    """The job exits, and that is reported as soon as its GPU's reading is of after it."""
    rig.local(job).finish(0)
    rig.steps(3, every_ms=600)
    rig.turn()
    assert rig.job(job).state is JobState.COMPLETED


def submit_next(rig: Rig) -> JobId:
    """A second job, whose message the worker has."""
    job = rig.submit()
    rig.steps()
    return job


def is_claimed(rig: Rig, job: JobId) -> bool:
    return rig.object(claim_key(job, 1)) is not None


def problem(rig: Rig) -> str:
    return rig.disk.status.problem


# --- memory after a job


def test_a_job_waits_until_the_last_one_has_given_its_memory_back(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.gpu = a_gpu(used_gib=70)
    end(rig, job)
    second = submit_next(rig)
    assert not is_claimed(rig, second)
    assert problem(rig) == ""
    rig.gpu = a_gpu(used_gib=1.5)  # the tolerance is half a GiB
    rig.steps(2, every_ms=TIMINGS.worker_tick_ms)
    assert is_claimed(rig, second)


def test_memory_that_is_not_given_back_blocks_the_slot_until_it_is(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.gpu = a_gpu(used_gib=70)
    end(rig, job)
    rig.steps(2, every_ms=TIMINGS.gpu_release_ms)
    text = "71680 MiB of its GPU's memory are in use after a job, and were 1024 MiB before it"
    assert problem(rig) == text
    rig.gpu = a_gpu()
    rig.steps(2, every_ms=TIMINGS.respawn_ms)
    assert problem(rig) == ""


def test_memory_that_others_take_between_two_jobs_is_none_of_ours(rig: Rig) -> None:
    end(rig, a_running_job(rig))
    rig.gpu = a_gpu(used_gib=70)
    assert is_claimed(rig, submit_next(rig))


@pytest.mark.parametrize(("before", "after"), [(None, 70), (1, None), (None, None)])
def test_memory_that_cannot_be_compared_is_not_waited_for(
    rig: Rig, before: float | None, after: float | None
) -> None:
    rig.gpu = a_gpu(used_gib=before)
    job = a_running_job(rig)
    rig.gpu = a_gpu(used_gib=after)
    end(rig, job)
    assert is_claimed(rig, submit_next(rig))


def test_an_adopted_job_has_no_beginning_to_compare_with(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.gpu = a_gpu(used_gib=70)
    rig.steps(2)
    end(rig, job)
    assert is_claimed(rig, submit_next(rig))


def test_a_cpu_slot_waits_for_nothing(rig: Rig) -> None:
    rig.gpu = None
    end(rig, a_running_job(rig))
    assert is_claimed(rig, submit_next(rig))


# --- a job of several GPUs


OTHER = WorkerName("n1-cpu1")


@pytest.fixture
def wide(rig: Rig) -> Rig:
    """The rig's worker leads; the node has a second slot, whose worker is not played."""
    rig.steps()
    rig.turn()
    rig.world.ready(OTHER, e.Slot(kind="cpu", index=1), machine=rig.machine)
    rig.world.turn()
    rig.gpus[OTHER] = a_gpu(index=1)
    return rig


def submit_wide(rig: Rig) -> JobId:
    job = rig.submit(slots=2)
    assert rig.attempt(job).slots == (WORKER, OTHER)
    rig.steps()
    return job


def test_a_job_of_two_gpus_is_not_started_while_somebody_else_uses_the_second(wide: Rig) -> None:
    wide.gpus[OTHER] = a_gpu(index=1, percent=40)
    job = submit_wide(wide)
    wide.steps(2, every_ms=TIMINGS.gpu_release_ms)
    assert not is_claimed(wide, job)
    assert problem(wide) == f"n1-cpu1: {BUSY}"
    wide.gpus[OTHER] = a_gpu(index=1)
    wide.steps(2, every_ms=TIMINGS.respawn_ms)
    assert (is_claimed(wide, job), problem(wide)) == (True, "")


def test_the_next_job_waits_until_the_last_one_has_given_back_the_memory_of_all_its_gpus(
    wide: Rig,
) -> None:
    job = submit_wide(wide)
    wide.turn()
    assert wide.disk.status.slots == (WORKER, OTHER)
    wide.gpus[OTHER] = a_gpu(index=1, used_gib=70)
    end(wide, job)
    assert problem(wide) == ""
    second = submit_wide(wide)
    wide.steps(2, every_ms=TIMINGS.gpu_release_ms)
    assert not is_claimed(wide, second)
    text = "71680 MiB of its GPU's memory are in use after a job, and were 1024 MiB before it"
    assert problem(wide) == f"n1-cpu1: {text}"
    wide.gpus[OTHER] = a_gpu(index=1)
    wide.steps(2, every_ms=TIMINGS.respawn_ms)
    assert (is_claimed(wide, second), problem(wide)) == (True, "")


@pytest.mark.parametrize("is_adopted", [False, True])
def test_the_other_workers_know_what_a_job_of_several_gpus_has_to_give_back(
    wide: Rig, is_adopted: bool
) -> None:
    job = submit_wide(wide)
    wide.turn()
    if is_adopted:
        wide.kill()
        wide.steps()
    end(wide, job)
    # Of an adopted job nobody saw what was in use before it.
    expected = {} if is_adopted else {OTHER: GIB}
    assert {k: v for k, v in wide.disk.memory_before.items() if k != WORKER} == expected


def test_a_worker_waits_for_what_another_ones_job_left_on_its_gpu(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.gpu = a_gpu(used_gib=70)
    rig.disk.note_gpu_memory_before(WORKER, GIB)
    job = submit_next(rig)
    assert not is_claimed(rig, job)
    rig.steps(2, every_ms=TIMINGS.gpu_release_ms)
    assert problem(rig).startswith("71680 MiB of its GPU's memory are in use after a job")
    rig.kill()
    rig.steps(2)
    assert not is_claimed(rig, job), "its next incarnation has forgotten it"
    rig.gpu = a_gpu()
    rig.steps(2, every_ms=TIMINGS.respawn_ms)
    assert (is_claimed(rig, job), problem(rig)) == (True, "")
    assert rig.disk.memory_before == {}


def test_an_idle_worker_tells_of_memory_that_another_ones_job_left_on_its_gpu(rig: Rig) -> None:
    rig.steps()
    rig.gpu = a_gpu(used_gib=70)
    rig.disk.note_gpu_memory_before(WORKER, GIB)
    rig.steps(3, every_ms=TIMINGS.gpu_release_ms)
    assert "71680 MiB" in problem(rig)


# --- somebody else's use


def test_a_job_is_not_started_on_a_gpu_that_somebody_else_uses(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.gpu = a_gpu(percent=40)
    job = submit_next(rig)
    rig.steps(2, every_ms=TIMINGS.gpu_release_ms)
    assert not is_claimed(rig, job)
    assert problem(rig) == BUSY
    rig.gpu = a_gpu(percent=14)
    rig.steps(2, every_ms=TIMINGS.respawn_ms)
    assert is_claimed(rig, job)
    assert problem(rig) == ""


def test_a_job_is_not_started_on_a_gpu_that_has_a_problem(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.gpu = Reading(index=0, problem="NVML: GPU is lost")
    job = submit_next(rig)
    rig.steps(2, every_ms=TIMINGS.gpu_release_ms)
    assert (is_claimed(rig, job), problem(rig)) == (False, "NVML: GPU is lost")


def test_an_end_is_reported_when_the_reading_no_longer_shows_the_jobs_own_use(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.gpu = a_gpu(percent=98)
    rig.local(job).finish(0)
    rig.steps()
    assert rig.said(e.AttemptFinished) == []
    rig.clock.advance_ms(400)
    rig.gpu = a_gpu(percent=3)
    rig.steps()
    (told,) = rig.said(e.AttemptFinished)
    assert told.utilisation_percent == 3


def test_a_gpu_that_is_still_busy_a_second_later_is_used_by_somebody_else(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.gpu = a_gpu(percent=40)
    rig.local(job).finish(0)
    ended_at = rig.clock.wall_ms()
    rig.steps(2, every_ms=500)
    assert rig.said(e.AttemptFinished) == []
    rig.steps()
    (told,) = rig.said(e.AttemptFinished)
    assert (told.utilisation_percent, told.ended_at) == (40, ended_at)


# --- what the leader makes of it


def finish(bench: Bench, job: JobId, percent: int | None) -> None:
    now_ms = bench.store.clock_ms()
    bench.fact(
        e.AttemptFinished(
            at=now_ms,
            worker=WorkerName("n1-cpu0"),
            cursor=1,
            job=job,
            attempt=1,
            outcome="exited",
            rc=0,
            started_at=now_ms,
            ended_at=now_ms,
            utilisation_percent=percent,
        ),
        "n1-cpu0",
    )


def beat(bench: Bench, slot: e.SlotBeat) -> None:
    made = e.Beat(
        writer=writer("node-n1"),
        n=0,
        at=bench.store.clock_ms(),
        node=NodeName("n1"),
        machine="m",
        slots={"n1-cpu0": slot},
    )
    key = BeatKey(stamp_ms=bench.store.clock_ms(), writer=writer("node-n1"), n=made.at % 1000)
    made = msgspec.structs.replace(made, n=key.n)
    bench.store.put_once(key.format(), e.encode(made))


@pytest.mark.parametrize(
    ("percent", "state"), [(40, JobState.PENDING), (14, JobState.ASSIGNED), (None, "ASSIGNED")]
)
def test_a_finish_says_at_once_whether_somebody_else_uses_the_gpu(
    tmp_path: Path, percent: int | None, state: JobState
) -> None:
    bench = Bench(tmp_path)
    bench.ready()
    first, second = bench.submit(0), bench.submit(1)
    leader = bench.leader()
    leader.step()
    finish(bench, first, percent)
    leader.step()
    assert bench.fold().projection.state.jobs[second].state == state


def test_a_finish_ends_what_an_older_beat_said_of_somebody_elses_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.ready()
    first = bench.submit(0)
    leader = bench.leader()
    leader.step()
    bench.clock.advance_ms(TIMINGS.beats_poll_ms)
    beat(bench, e.SlotBeat(alive=True, utilisation_percent=40))
    leader.step()
    worker = WorkerName("n1-cpu0")
    assert bench.fold().projection.state.workers[worker].problem == BUSY
    finish(bench, first, 0)
    leader.step()
    assert bench.fold().projection.state.workers[worker].problem == ""


def test_a_finish_ends_no_other_problem(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.ready()
    first = bench.submit(0)
    leader = bench.leader()
    leader.step()
    bench.clock.advance_ms(TIMINGS.beats_poll_ms)
    beat(bench, e.SlotBeat(alive=True, problem="NVML: GPU is lost"))
    leader.step()
    finish(bench, first, 0)
    leader.step()
    (worker,) = bench.fold().projection.state.workers.values()
    assert worker.problem == "NVML: GPU is lost"


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (e.SlotBeat(alive=True, utilisation_percent=15), "its GPU is 15 % busy with somebody "
         "else's work"),
        (e.SlotBeat(alive=True, utilisation_percent=14), ""),
        (e.SlotBeat(alive=True, utilisation_percent=99, running="aaaaaaaa.1"), ""),
        (e.SlotBeat(alive=True), ""),
        (e.SlotBeat(alive=True, problem="NVML: GPU is lost", utilisation_percent=99),
         "NVML: GPU is lost"),
        (e.SlotBeat(alive=False), "its worker is not running"),
        (e.SlotBeat(alive=True, ecc_errors=3, xid=94), ""),
    ],
)  # fmt: skip
def test_what_a_beat_says_against_a_slot(slot: e.SlotBeat, expected: str) -> None:
    assert slot_problem(slot) == expected


# --- what a node's beat says


class Statuses:
    """A host on which every worker lives, and runs nothing unless a test says so."""

    def __init__(self, **statuses: WorkerStatus) -> None:
        self._statuses = statuses

    def status(self, name: str) -> WorkerStatus:
        return self._statuses.get(name.replace("-", "_"), WorkerStatus())

    def process_of(self, worker: WorkerName) -> str:
        return worker

    def runs(self, name: str) -> bool:
        return True

    def free_bytes(self) -> dict[str, int]:
        return {}


def test_a_beat_carries_what_can_be_read_of_each_gpu_and_nothing_else(tmp_path: Path) -> None:
    context = Bench(tmp_path).context()
    slots = {WorkerName(f"n1-gpu{index}"): e.Slot(kind="gpu", index=index) for index in (0, 1, 2)}
    readings = [
        a_gpu(percent=7, temperature_c=51, ecc_errors=2, xid=94, memory_total_bytes=80 * GIB),
        Reading(index=1, xid=79, problem="NVML: GPU is lost"),
    ]
    host = Statuses()
    made = node_beat(context, NodeName("n1"), "default", slots, host, readings)  # type: ignore[arg-type]
    assert made.slots == {
        "n1-gpu0": e.SlotBeat(
            alive=True,
            utilisation_percent=7,
            memory_used_bytes=GIB,
            memory_total_bytes=80 * GIB,
            temperature_c=51,
            ecc_errors=2,
            xid=94,
        ),
        "n1-gpu1": e.SlotBeat(alive=True, problem="NVML: GPU is lost", xid=79),
        "n1-gpu2": e.SlotBeat(alive=True, problem="GPU 2 cannot be seen"),
    }


def test_a_beat_names_a_job_on_every_slot_that_it_uses(tmp_path: Path) -> None:
    context = Bench(tmp_path).context()
    names = [WorkerName(f"n1-gpu{index}") for index in (0, 1, 2)]
    slots = {name: e.Slot(kind="gpu", index=index) for index, name in enumerate(names)}
    readings = [a_gpu(index=index, percent=98) for index in (0, 1, 2)]
    leads = WorkerStatus(running=("aaaaaaaa.1",), slots=(names[0], names[2]))
    host = Statuses(n1_gpu0=leads)
    made = node_beat(context, NodeName("n1"), "default", slots, host, readings)  # type: ignore[arg-type]
    assert [made.slots[name].running for name in names] == ["aaaaaaaa.1", "", "aaaaaaaa.1"]
    assert [slot_problem(made.slots[name]) == "" for name in names] == [True, False, True]
