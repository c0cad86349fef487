"""What must be true of the ledger that the demo left, and the figures that it prints.

Owns the demo's expectations. Each check returns what is wrong as lines that name it; no
line means that all is as it must be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from gpuq.render import plain_table
from ledger.events import JobState
from ledger.keys import CLAIMS, log_key
from ledger.names import FlowId, JobId
from ledger.state import Job, State
from ledger.stores.base import Store
from tools.fairness import Fairness, fairness
from tools.figures import percentile, waits_ms, walk
from tools.fleet import Fleet, FleetError

FAILED_RC = 3


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. ``batch`` are the jobs that backlog all organizations."""

    jobs: Sequence[JobId]
    batch: set[JobId]
    weights: Mapping[str, int]
    slots: int
    pinned_to: str

    def flow(self, organization: str) -> FlowId:
        return FlowId(f"{organization}/batch/default")


def report_of(store: Store, ledger: str, fleet: Fleet, expected: Expected) -> list[str]:
    """Print the figures of a ledger at rest; what is wrong with it."""
    *_, state = walk(store, ledger)
    flows = [expected.flow(name) for name in expected.weights]
    measured = fairness(store, ledger, flows, lambda job: job.id in expected.batch)
    if measured is not None:
        print(_shares_text(measured))
    print(_waits_text(state, expected))
    try:
        fleet.show("replay", "verify")
        verified = []
    except FleetError as error:
        verified = [str(error)]
    return [
        *verified,
        *_wrong_shares(measured),
        *chain.from_iterable(_wrong_end(state, job) for job in expected.jobs),
        *_wrong_pair(state, expected),
        *_wrong_claims(store, state),
        *_wrong_logs(store, state),
        *_wrong_slots(state, expected),
    ]


# -- the figures


def _shares_text(measured: Fairness) -> str:
    shares = [
        (
            _organization(share.flow),
            f"{share.weight:g}",
            str(share.jobs),
            _s(share.charged_ms),
            _s(share.owed_ms),
            f"{(share.charged_ms - share.owed_ms) / 1000:+.1f}",
            _s(share.bound_ms),
        )
        for share in measured.shares
    ]
    pairs = [
        (
            " and ".join(_organization(flow) for flow in pair.flows),
            _s(pair.difference_ms),
            _s(pair.bound_ms),
        )
        for pair in measured.pairs
    ]
    while_backlogged = f"while all were backlogged, {_s(measured.end_at - measured.begin_at)} s"
    return "\n".join(
        (
            f"\nslot-seconds {while_backlogged} (what ran on: its estimate)",
            plain_table(
                ("ORG", "WEIGHT", "JOBS", "SLOT-SECONDS", "OWED", "OFF BY", "BOUND"), shares
            ),
            "\nhow far they are apart, in slot-seconds per weight",
            plain_table(("PAIR", "APART", "BOUND"), pairs),
        )
    )


def _waits_text(state: State, expected: Expected) -> str:
    header = ("ORG", "JOBS", "WAIT P50", "WAIT P95")
    rows = []
    for name in expected.weights:
        jobs = [job for job in state.jobs.values() if job.spec.organization == name]
        waits = waits_ms(jobs)
        if waits:
            cells = (f"{_s(percentile(waits, percent))} s" for percent in (50, 95))
            rows.append((name, str(len(jobs)), *cells))
    return f"\nfrom submit to start\n{plain_table(header, rows)}\n"


def _organization(flow: FlowId) -> str:
    return flow.split("/", 1)[0]


def _s(duration_ms: float) -> str:
    return f"{duration_ms / 1000:.1f}"


# -- the expectations


def _wrong_shares(measured: Fairness | None) -> Iterator[str]:
    if measured is None:
        yield "the organizations were never backlogged together, so there is no share to check"
        return
    for pair in measured.pairs:
        if pair.difference_ms > pair.bound_ms:
            yield (
                f"{' and '.join(pair.flows)} differ by {_s(pair.difference_ms)} s per weight, "
                f"more than the bound of {_s(pair.bound_ms)} s"
            )


def _wrong_end(state: State, job_id: JobId) -> Iterator[str]:
    """Every job ended as its script says, after one attempt."""
    job = state.jobs.get(job_id)
    if job is None:
        yield f"{job_id} was submitted and is not in the ledger"
        return
    wanted, rc = _wanted_end(job)
    last = job.last
    if job.state is not wanted:
        yield f"{_label(job)} ended as {job.state.value}, not {wanted.value}: {job.reason or '-'}"
    elif last is None or last.started_at is None:
        yield f"{_label(job)} never started"
    elif rc is not None and last.rc != rc:
        yield f"{_label(job)} ended with rc {last.rc}, not {rc}"
    elif len(job.attempts) != 1:
        yield f"{_label(job)} took {len(job.attempts)} attempts"


def _wanted_end(job: Job) -> tuple[JobState, int | None]:
    match job.spec.name:
        case "fail.sh":
            return JobState.FAILED, FAILED_RC
        case "long.sh":
            return JobState.CANCELLED, None
        case _:
            return JobState.COMPLETED, 0


def _wrong_pair(state: State, expected: Expected) -> Iterator[str]:
    """Pinned jobs ran on their worker in the order of their names."""
    named = {job.spec.name: job.last for job in state.jobs.values()}
    first, second = named.get("00_prepare.sh"), named.get("01_train.sh")
    if first is None or second is None:
        yield "the pinned pair did not run"
        return
    for attempt in (first, second):
        if attempt.lead != expected.pinned_to:
            yield f"a job pinned to {expected.pinned_to} ran on {attempt.lead}"
    if (second.started_at or 0) < (first.ended_at or 0):
        yield "01_train.sh started before 00_prepare.sh had ended"


def _wrong_claims(store: Store, state: State) -> Iterator[str]:
    """Each attempt was claimed once; nothing else was."""
    claimed = [entry.key for entry in store.list(CLAIMS)]
    attempts = sum(len(job.attempts) for job in state.jobs.values())
    if len(claimed) != attempts:
        yield f"{len(claimed)} claims stand beside {attempts} attempts"


def _wrong_logs(store: Store, state: State) -> Iterator[str]:
    """Each log is whole and ends with the job's rc."""
    for job in state.jobs.values():
        if job.last is not None:
            log = store.get(log_key(job.id, job.last.number))
            last_line = log.splitlines()[-1:] if log else []
            if last_line != [b"rc=%d" % (job.last.rc or 0)]:
                yield f"the log of {_label(job)} ends with {last_line}, not with rc={job.last.rc}"


def _wrong_slots(state: State, expected: Expected) -> Iterator[str]:
    used = {attempt.lead for job in state.jobs.values() for attempt in job.attempts}
    if len(used) != expected.slots:
        yield f"only {len(used)} of {expected.slots} slots ran a job: {', '.join(sorted(used))}"


def _label(job: Job) -> str:
    return f"{job.spec.name} ({job.id})"
