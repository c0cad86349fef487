"""One attempt on a worker's slot, from its launch or adoption until nothing of it is left.

Owns what an end means for the ledger: which fact it becomes, whether the log goes out
whole (with its ``rc``) or as the rest of its pieces (the rc is not known), and when the
attempt's folder may go.
"""

from __future__ import annotations

import contextlib

from ledger.events import AttemptFinished, AttemptLost, AttemptRef
from ledger.keys import attempt_name
from ledger.names import WorkerName
from roles.context import Context
from roles.jobreport import read_report
from roles.launcher import JobHandle, Plan, RunResult
from roles.logship import LogShipper
from roles.outputs import OutputShipper
from roles.processes import Identity

NOT_FOUND_RC = 127
_KILLED_RC = 137

End = AttemptFinished | AttemptLost
"""Worker and cursor are filled in when it is reported."""


class WatchedAttempt:
    """An attempt that this worker launched or adopted."""

    def __init__(
        self, context: Context, ref: AttemptRef, handle: JobHandle, shipper: LogShipper
    ) -> None:
        self.ref = ref
        self.name = attempt_name(ref.job, ref.attempt)
        self.handle = handle
        self.shipper = shipper
        self.end: End | None = None
        """None while it runs."""
        self.unkillable: tuple[Identity, ...] = ()
        """What was left of it, even after KILL."""
        self.log_is_up = False
        """The whole log stands in the bucket, or its pieces where the rc is not known."""
        self.end_fact: int | None = None
        """The number under which the end was reported; -1: by a former incarnation."""
        self._context = context
        plan = handle.plan()
        self.outputs = OutputShipper(context, ref, "", ())
        """Those of its end, once that is known."""
        self.grace_ms = plan.grace_ms if plan is not None else context.timings.grace_ms
        self._is_exclusive = plan is not None and plan.exclusive_ms is not None
        self._bucket_seen_ms: int | None = None
        self.slots = plan.slots if plan is not None else ()
        """All that it uses, as far as that is known."""
        self.claimed_at = (
            plan.claim_boot_ms + plan.epoch_offset_ms if plan else context.store.clock_ms()
        )
        """On the store's clock; a moment before its start."""

    @property
    def runs(self) -> bool:
        return self.end is None

    @property
    def is_reported(self) -> bool:
        return self.end_fact is not None

    def note_bucket_seen(self, boot_ms: int) -> None:
        """Tell an exclusive job when the bucket last heard of its node."""
        if self._is_exclusive and boot_ms != self._bucket_seen_ms:
            # A full disk ends an exclusive job: nobody can say that the bucket is there.
            with contextlib.suppress(OSError):
                self.handle.note_bucket_seen(boot_ms)
                self._bucket_seen_ms = boot_ms

    def look(self) -> None:
        """Notice its end. Local files only; blocks for seconds where it must kill."""
        if self.end is None:
            self._notice_end()
            plan = self.handle.plan()
            if plan is not None and _leaves_outputs(plan, self.end):
                self.outputs = OutputShipper(self._context, self.ref, plan.cwd, plan.outputs)
        self.outputs.give_up_if_stalled()

    def fail(self, reason: str) -> None:
        """It is over before it could be launched."""
        now_ms = self._context.store.clock_ms()
        self.end = AttemptFinished(
            at=now_ms,
            worker=WorkerName(""),
            cursor=0,
            job=self.ref.job,
            attempt=self.ref.attempt,
            outcome="failed_to_start",
            rc=NOT_FOUND_RC,
            started_at=now_ms,
            ended_at=now_ms,
            reason=reason,
        )

    def lose(self, reason: str, *, ran: bool) -> None:
        """Nothing more is known of it, or it is certain that it never ran."""
        self.end = lost(self._context, self.ref, reason, ran=ran)

    def ship_end_of_log(self) -> None:
        """Put what the bucket still lacks of the log. Raises TransientError: call again."""
        if isinstance(self.end, AttemptFinished):
            self.shipper.ship_whole(self.end.rc, self.outputs.notes)
        else:
            self.shipper.ship_rest()
        self.log_is_up = True

    def _notice_end(self) -> None:
        match self.handle.state():
            case "running":
                return
            case "ended":
                result = self.handle.result()
                assert result is not None
                self.unkillable = result.unkillable
                self._end_with(result)
            case "dead":
                self._reap()
                self.lose("its runner died", ran=True)
            case "prepared":
                self.lose("its runner died before the job was executed", ran=False)
            case "absent":
                if self.handle.plan() is not None and self.handle.leader() is not None:
                    self._reap()
                self.lose("its folder on this machine has vanished", ran=True)

    def _reap(self) -> None:
        self.unkillable = tuple(sorted(self.handle.reap_dead().left))

    def _end_with(self, result: RunResult) -> None:
        if result.outcome == "not_started":
            self.lose(result.reason, ran=False)
            return
        self.end = AttemptFinished(
            at=result.ended_at_ms,
            worker=WorkerName(""),
            cursor=0,
            job=self.ref.job,
            attempt=self.ref.attempt,
            outcome="oom" if result.oom else result.outcome,
            rc=_KILLED_RC if result.rc is None else result.rc,
            started_at=result.started_at_ms,
            ended_at=result.ended_at_ms,
            reason=_reason(result),
            log_bytes=result.log_bytes,
            report=read_report(self.handle.report_path),
        )


def _leaves_outputs(plan: Plan, end: End | None) -> bool:
    """Not where it never ran, or where nobody knows what became of it."""
    if not isinstance(end, AttemptFinished) or end.outcome == "failed_to_start":
        return False
    return plan.outputs_on_failure or (end.outcome, end.rc) == ("exited", 0)


def lost(context: Context, ref: AttemptRef, reason: str, *, ran: bool) -> AttemptLost:
    """The end of an attempt of which no more is known, or that certainly never ran."""
    return AttemptLost(
        at=context.store.clock_ms(),
        worker=WorkerName(""),
        cursor=0,
        job=ref.job,
        attempt=ref.attempt,
        reason=reason,
        ran=ran,
    )


def _left_behind(count: int) -> str:
    match count:
        case 0:
            return ""
        case 1:
            return "killed 1 process that it left behind"
        case _:
            return f"killed {count} processes that it left behind"


def _reason(result: RunResult) -> str:
    """One line: why it ended, and what a user should know beside its rc."""
    parts = [
        result.reason,
        _left_behind(result.left_behind),
        f"{len(result.unkillable)} of its processes cannot be killed" if result.unkillable else "",
        f"{result.log_lost_bytes} bytes of its log are lost ({result.log_problem})"
        if result.log_lost_bytes
        else "",
    ]
    return "; ".join(part for part in parts if part)
