"""What a worker that begins makes of the ledger and of what stands on its machine.

Owns the comparison of the two (docs/ARCHITECTURE.md, "Workers and supervisors" and "Rules
the model forced", 8, 9 and 11), as pure functions: nothing here is done yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from ledger.events import SUPERSEDED, AttemptRef, Liveness, Slot
from ledger.keys import attempt_name
from ledger.names import NodeName, WorkerName
from ledger.state import Attempt, Job, Phase, State
from roles.launcher import State as Standing


class Stop(msgspec.Struct, frozen=True):
    """An adopted attempt that must not go on."""

    ref: AttemptRef
    reason: str
    grace_ms: int
    """0: the job's own."""


class Loss(msgspec.Struct, frozen=True):
    """An attempt that the ledger takes for running and that is not here."""

    ref: AttemptRef
    ran: bool
    """False where its command was certainly not executed."""


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about the former incarnations' attempts."""

    watch: tuple[AttemptRef, ...]
    """All that runs or has ended here; what runs comes first."""
    unannounced: tuple[AttemptRef, ...]
    """Those of them that run, and that the ledger does not know to have started."""
    stops: tuple[Stop, ...]
    losses: tuple[Loss, ...]
    litter: tuple[AttemptRef, ...]
    """Never launched and of no use any more, or not even prepared to its end."""


def take_stock(
    state: State,
    worker: WorkerName,
    here: Mapping[AttemptRef, Standing],
    reported: Collection[str],
) -> Inheritance:
    """Compare the ledger with ``here``; ``reported`` names ends that it may not show yet.

    O(jobs in the state).
    """
    running = [ref for ref, standing in here.items() if standing == "running"]
    over = [ref for ref, standing in here.items() if standing in ("ended", "dead")]
    prepared = [ref for ref, standing in here.items() if standing == "prepared"]
    begun = [ref for ref, standing in here.items() if standing == "absent"]
    owned = {AttemptRef(job.id, attempt.number): attempt for job, attempt in _led(state, worker)}
    losses = [
        Loss(ref, ref not in prepared)
        for ref, attempt in owned.items()
        if Phase.STARTED <= attempt.phase < Phase.ENDED
        and ref not in running
        and ref not in over
        and attempt_name(ref.job, ref.attempt) not in reported
    ]
    return Inheritance(
        watch=(*running, *over),
        unannounced=tuple(
            ref for ref in running if ref in owned and owned[ref].phase < Phase.STARTED
        ),
        stops=tuple(stop for ref in running if (stop := _find_stop(state, ref)) is not None),
        losses=tuple(losses),
        litter=(
            *begun,
            *(ref for ref in prepared if ref not in owned or owned[ref].phase >= Phase.STARTED),
        ),
    )


def foreign_machine(state: State, node: NodeName, machine: str) -> str:
    """The other machine that still holds the node's name; or empty."""
    known = state.nodes.get(node)
    if known is None or known.machine in ("", machine) or known.liveness is Liveness.GONE:
        return ""
    serving = any(not state.workers[name].retired for name in known.workers)
    return known.machine if serving else ""


def left_over(
    state: State, node: NodeName, machine: str, offered: Collection[WorkerName]
) -> dict[WorkerName, Slot]:
    """The slots that this machine offered before, does not any more, and must not forget.

    Their workers still count as serving, or lead attempts that nobody else may end.
    """
    known = state.nodes.get(node)
    if known is None or known.machine != machine:
        return {}
    leads = {
        attempt.lead
        for job in state.jobs.values()
        for attempt in job.attempts
        if attempt.phase is not Phase.ENDED
    }
    return {
        name: state.workers[name].slot
        for name in known.workers
        if name not in offered and (not state.workers[name].retired or name in leads)
    }


def _led(state: State, worker: WorkerName) -> Iterator[tuple[Job, Attempt]]:
    """The attempts that this worker leads, as far as the state remembers them."""
    for job in state.jobs.values():
        for attempt in job.attempts:
            if attempt.lead == worker:
                yield job, attempt


def _find_stop(state: State, ref: AttemptRef) -> Stop | None:
    """Why an attempt that runs here must be stopped, and how; None where it may go on."""
    job = state.jobs.get(ref.job)
    attempt = job.attempt(ref.attempt) if job is not None else None
    if job is None or attempt is None or job.last is not attempt or attempt.phase is Phase.ENDED:
        return Stop(ref, SUPERSEDED, 0)
    if attempt.stop_ordered:
        return Stop(ref, attempt.stop_reason, attempt.stop_grace_ms)
    return Stop(ref, "cancelled", job.cancel.grace_ms) if job.cancel is not None else None
