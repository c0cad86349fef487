"""When a worker ships outputs: before the end is told, never instead of it, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import events as e
from ledger.artifacts import read_artifacts
from ledger.events import JobState
from ledger.keys import ARTIFACTS, BLOBS, artifact_key, log_key
from ledger.names import JobId
from ledger.timings import DAY_MS
from tests.roles.worker_rig import TIMINGS, Death, Rig, a_running_job, mend, outage


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def work(tmp_path: Path) -> str:
    """A working directory with one output."""
    (tmp_path / "a.txt").write_text("result")
    return str(tmp_path)


def paths(rig: Rig, job: JobId) -> list[str]:
    body = rig.object(artifact_key(job, 1))
    assert body is not None
    return [file.path for file in read_artifacts(body, "test", job, 1).files]


def test_pieces_then_manifest_then_log_then_the_end(rig: Rig, work: str) -> None:
    job = a_running_job(rig, cwd=work, outputs=("*.txt", "*.csv"))
    puts: list[str] = []
    rig.effects.on_effect = lambda _, what: puts.append(what)
    rig.local(job).finish(0)
    rig.settle()
    kinds = [what.split("/")[0] for what in puts if what.startswith("before put")]
    assert kinds == [f"before put {kind}" for kind in ("blobs", "artifacts", "logs", "facts")]
    assert paths(rig, job) == ["a.txt"]
    assert rig.object(log_key(job, 1)) == (
        b"begin\nend\n[gpuq: left out: --output '*.csv' matched nothing]\nrc=0\n"
    )
    assert rig.job(job).reason == "some outputs were left out: the end of its log says why"


@pytest.mark.parametrize(
    ("rc", "outcome", "wanted", "kept"),
    [
        (0, "exited", False, True),
        (1, "exited", False, False),
        (1, "exited", True, True),
        (143, "timeout", True, True),
        (143, "timeout", False, False),
        (127, "failed_to_start", True, False),
    ],
)
def test_a_failure_leaves_outputs_only_if_asked(
    rig: Rig, work: str, rc: int, outcome: str, wanted: bool, kept: bool
) -> None:
    job = a_running_job(rig, cwd=work, outputs=("*.txt",), outputs_on_failure=wanted)
    rig.local(job).finish(rc, outcome)
    rig.settle()
    assert rig.job(job).state.ended
    assert bool(list(rig.store.list(ARTIFACTS))) is kept


def test_without_outputs_nothing_is_looked_for(rig: Rig, work: str) -> None:
    job = a_running_job(rig, cwd=work)
    asked: list[str] = []
    rig.effects.on_effect = lambda _, what: asked.append(what)
    rig.local(job).finish(0)
    rig.settle()
    assert not [what for what in asked if "artifacts" in what or "blobs" in what]


def test_an_outage_delays_neither_the_end_nor_loses_the_outputs(rig: Rig, work: str) -> None:
    job = a_running_job(rig, cwd=work, outputs=("*.txt",))
    rig.effects.on_effect = outage("before")
    rig.local(job).finish(0)
    rig.steps(10, every_ms=TIMINGS.retry_max_ms)
    assert rig.disk.status.pending_facts == 1, "the end is on the disk"
    mend(rig)
    rig.settle()
    (end,) = rig.said(e.AttemptFinished)
    assert end.reason == "its outputs follow when the store can be reached"
    assert rig.job(job).state is JobState.COMPLETED
    assert paths(rig, job) == ["a.txt"]
    assert rig.disk.attempts == {}


def test_a_store_that_takes_no_outputs_delays_no_report_and_the_slot_says_so(
    rig: Rig, work: str
) -> None:
    job = a_running_job(rig, cwd=work, outputs=("*.txt",))
    rig.effects.on_effect = outage(f"before put {BLOBS}")
    rig.local(job).finish(0)
    rig.steps(4, every_ms=TIMINGS.retry_max_ms)
    rig.turn()
    assert rig.job(job).state is JobState.COMPLETED
    assert rig.disk.status.problem == f"the outputs of {job}.1 are not uploaded yet"
    following = rig.submit()
    rig.steps(4, every_ms=TIMINGS.retry_max_ms)
    assert rig.disk.executed[f"{following}.1"] == 0, "it could change the files"
    rig.clock.advance_ms(DAY_MS)
    rig.steps(4, every_ms=TIMINGS.retry_max_ms)
    assert rig.disk.executed[f"{following}.1"] == 1, "they were given up"
    assert rig.disk.status.problem == ""
    rig.local(following).finish(0)
    mend(rig)
    rig.settle()
    assert list(rig.store.list(ARTIFACTS)) == []


def test_a_worker_that_retires_ships_what_is_on_its_way(rig: Rig, work: str) -> None:
    job = a_running_job(rig, cwd=work, outputs=("*.txt",))
    assert rig.worker is not None
    rig.worker.retire("its node was stopped")
    rig.local(job).finish(0)
    rig.settle()
    assert paths(rig, job) == ["a.txt"]


EFFECTS = 15
"""From the end of such a job until nothing is left to do."""


def killed_at(number: int, work: str) -> tuple[Rig, JobId]:
    """A job with an output, by a worker that dies at this effect after the job's end."""
    rig = Rig()
    job = a_running_job(rig, cwd=work, outputs=("*.txt", "*.csv"))
    start = rig.effects.count

    def die(count: int, _what: str) -> None:
        if count - start == number:
            raise Death

    rig.effects.on_effect = die
    rig.local(job).finish(0)
    rig.settle()
    return rig, job


@pytest.mark.parametrize("number", range(1, EFFECTS + 1))
def test_killed_at_any_effect_the_outputs_are_whole_and_the_end_is_told(
    number: int, work: str
) -> None:
    rig, job = killed_at(number, work)
    assert rig.deaths == 1
    assert rig.job(job).state is JobState.COMPLETED
    assert paths(rig, job) == ["a.txt"]
    log = rig.object(log_key(job, 1))
    assert log is not None
    assert log.endswith(b"[gpuq: left out: --output '*.csv' matched nothing]\nrc=0\n")


def test_there_are_that_many_effects(work: str) -> None:
    assert killed_at(EFFECTS, work)[0].deaths == 1
    assert killed_at(EFFECTS + 1, work)[0].deaths == 0
