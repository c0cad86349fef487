"""``gpuq why``: the reason for which a job waits, or waited, and the numbers behind it.

Owns the reading of the past for one job and its presentation. The reasons are
``scheduling.explain``'s, the numbers ``scheduling.account``'s, the parts of the wait
``scheduling.waits``'. All is as of one page; nothing is decided here.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuq.after import texts_of
from gpuq.arrays import progress_of
from gpuq.client import Client, open_client
from gpuq.history import pages_after, parse_moment, state_before
from gpuq.render import (
    cell_width,
    local_time,
    plain_table,
    print_clauses,
    print_json,
    printable,
    short_duration,
    times,
)
from gpuq.selectors import select
from gpuq.view import View, read_view
from ledger.arrays import member_of
from ledger.errors import RequestError
from ledger.events import JobState
from ledger.fair_state import SCALE
from ledger.names import JobId
from ledger.policy import ApiLimits
from ledger.rates import Window
from ledger.state import Job, State
from scheduling.account import Account, Accounts, Runs
from scheduling.aside import state_word
from scheduling.explain import Explainer
from scheduling.followed import Followed
from scheduling.placement import trouble
from scheduling.waits import Heading, Wait, first_start, wait_ms

SHOWN_MAX = 5
"""Flows ahead, running jobs and troubled workers that a person is shown; the JSON has all."""

_LABEL_CELLS = 12


def why(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="An id, the beginning of one, a name, or 'last'.")
    ],
    *,
    at: Annotated[
        str | None,
        typer.Option("--at", help="As of then: 2h (ago), or a local time; else as of now."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
) -> None:
    """Say why a job waits, or waited: one sentence, then the numbers."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    job_id = select(client, view, job)
    now_ms = view.now_ms if at is None else parse_moment(at, view.now_ms)
    named, job_id = job_id, _as_it_waits(view, job_id)
    if named != job_id and not json:
        print(f"{named} has not begun and waits as part of its array:")
    if job_id in view.unposted and at is None:
        _show_unposted(view, job_id, json=json)
        return
    nobody_leads = at is None and not view.leadership.alive
    answer = _Answer(_follow(client, view, job_id, now_ms), now_ms, nobody_leads=nobody_leads)
    if json:
        print_json(answer.json())
    else:
        answer.show()


def _as_it_waits(view: View, job_id: JobId) -> JobId:
    """The job itself; of a member that has not begun its array, which waits for it."""
    is_left = job_id not in view.state.jobs and view.job(job_id) is not None
    named = member_of(job_id) if is_left else None
    return job_id if named is None else named[0]


def _follow(client: Client, view: View, job_id: JobId, until_ms: int) -> tuple[Followed, Wait]:
    """The journal up to then, from before the job was submitted."""
    if job_id in view.state.refused:
        raise RequestError(f"the submit of {job_id} was refused: {view.state.refused[job_id]}")
    known = view.state.jobs.get(job_id)
    from_ms = 0 if known is None else known.submitted_at
    state = state_before(client.store, client.ledger, min(from_ms, until_ms))
    if job_id in state.jobs or job_id in state.archive:
        state = State(ledger=client.ledger)
    followed = Followed(state)
    wait = Wait(followed, job_id)
    for page, sha256 in pages_after(client.store, state.seq, until_ms):
        followed.fold(page, sha256)
    if wait.job is None:
        raise RequestError(
            f"{job_id} stood in no page at {local_time(until_ms, view.now_ms)}: "
            "say a later time with --at"
        )
    return followed, wait


def _show_unposted(view: View, job_id: JobId, *, json: bool) -> None:
    """What nobody has decided upon yet has no numbers."""
    job = view.state.jobs[job_id]
    reason = "not yet posted: no page has its submit"
    if not view.leadership.alive:
        reason += ", and nobody leads: start a leader with 'gpuq up'"
    if json:
        body = {"id": job_id, "name": job.spec.name, "state": job.state.value, "why": reason}
        print_json({**body, **times(as_of=view.now_ms)})
    else:
        print(printable(f"{job_id} {job.spec.name} is {reason}"))


class _Answer:
    """One job as of one moment."""

    def __init__(self, read: tuple[Followed, Wait], now_ms: int, *, nobody_leads: bool) -> None:
        self._followed, self._wait = read
        self._state = self._followed.state
        self._now_ms = now_ms
        self._nobody_leads = nobody_leads
        assert self._wait.job is not None
        self._job: Job = self._wait.job
        self._explainer = Explainer(self._followed.projection, now_ms)
        self._account: Account | None = None
        if self._job.in_queue:
            followed = self._followed
            accounts = Accounts(followed.projection, followed.fleet, followed.headroom)
            self._account = accounts.of(self._job)

    # -- the sentence

    def sentence(self) -> str:
        job = self._job
        overdue = ", overdue" if self._explainer.is_overdue(job) else ""
        if job.array is not None and not job.state.queued:
            stands = f"ended {job.state.value}" if job.state.ended else "has begun as a whole"
            return f"{stands}: {progress_of(job)}"
        match job.state:
            case JobState.PENDING if self._nobody_leads:
                return (
                    f"waits{overdue}: nobody leads, start a leader with 'gpuq up'; "
                    f"as of the last page: {self._explainer.why(job)}"
                )
            case JobState.PENDING if job.aside_since is not None:
                return self._explainer.why(job)
            case JobState.PENDING:
                return f"waits{overdue}: {self._explainer.why(job)}"
            case JobState.HELD if job.wakes_at:
                return f"is put off: {self._explainer.why(job)}"
            case JobState.HELD:
                return f"is held{overdue}: {self._explainer.why(job)}"
            case JobState.ASSIGNED:
                return f"is assigned to {self._where()} and has not started yet"
            case JobState.RUNNING | JobState.STOPPING:
                word = "runs on" if job.state is JobState.RUNNING else "is being stopped on"
                return f"{word} {self._where()}; it {self._waited()}"
        reason = f": {job.reason}" if job.reason else ""
        return f"ended {job.state.value}{reason}; it {self._waited()}"

    def _where(self) -> str:
        last = self._job.last
        assert last is not None
        return ", ".join(last.slots)

    def _waited(self) -> str:
        waited = short_duration(wait_ms(self._job, self._now_ms))
        if first_start(self._job) is None:
            return f"waited {waited} and never started"
        return f"waited {waited} before it started"

    # -- on screen

    def show(self) -> None:
        job = self._job
        print_clauses([f"{job.id} {job.spec.name} {self.sentence()}"])
        print()
        for label, clauses in self._lines():
            self._line(label, clauses)
        if self._account is not None and self._account.running:
            print("\nthe largest that run in its pool:")
            running = self._account.running[:SHOWN_MAX]
            header = ("ID", "FLOW", "SLOTS", "EXPECTED-END", "BY")
            print(plain_table(header, [self._runs_row(runs) for runs in running]))

    def _line(self, label: str, clauses: list[str]) -> None:
        """One line a clause, so that it fits a terminal of 80 columns."""
        for number, clause in enumerate(clause for clause in clauses if clause):
            head = f"{label}:" if number == 0 else ""
            assert cell_width(head) <= _LABEL_CELLS
            print(f"{head:<{_LABEL_CELLS}} {printable(clause)}")

    def _lines(self) -> list[tuple[str, list[str]]]:
        priority = f"{self._job.priority}, in its flow alone" if self._job.priority else ""
        lines = [
            ("flow", [self._flow_line()]),
            ("priority", [priority]),
            ("after", self._after_lines()),
        ]
        if self._job.spec.begin_at:
            lines.append(("begin", [self._when(self._job.spec.begin_at)]))
        if self._account is not None:
            lines += self._account_lines(self._account)
        elif self._wait.assigned is not None:
            lines.append(("turn", self._assigned_lines()))
        lines.append(("waited", self._wait_lines()))
        lines.append(("as of", [self._as_of()]))
        return lines

    def _flow_line(self) -> str:
        name, pool = self._job.placed.flow, self._job.placed.pool
        discipline = self._state.policy.discipline(pool)
        flow = self._state.flows.get(name)
        if flow is None:
            return f"{name}, of which nothing has waited yet, served by {discipline}"
        numerator, denominator = self._followed.projection.fair.weight(flow, self._state.policy)
        return f"{flow.id}, weight {numerator / denominator:.3g}, served by {discipline}"

    def _after_lines(self) -> list[str]:
        """Each job whose end it waits for, or waited for, and how that stands."""
        after = self._job.spec.after
        more = len(after) - SHOWN_MAX
        return [
            *(f"{each}: {state_word(self._state, each.job)}" for each in after[:SHOWN_MAX]),
            f"and {_count(more, 'job')} more" if more > 0 else "",
        ]

    def _account_lines(self, account: Account) -> list[tuple[str, list[str]]]:
        spec = self._job.spec
        unit = "tokens" if account.is_tokens else "slot-s"
        cost = account.cost if account.is_tokens else account.cost / 1000
        deadline = f"{self._when(spec.deadline_at)}" if spec.deadline_at else ""
        return [
            (
                "turn",
                [
                    f"start tag {_tag(account.tags.start)}, finish tag "
                    f"{_tag(account.tags.finish)} (cost {cost:g} {unit})",
                    f"the pool's virtual time is {_tag(account.virtual_time)}",
                ],
            ),
            (
                "share",
                [
                    f"owed {account.owed_slots / 1000:.2f} of {account.pool_slots} slots, "
                    f"served {account.served_slots / 1000:.2f} now"
                ],
            ),
            ("ahead", self._ahead_lines(account)),
            ("limit", [self._limit_line()]),
            ("day", self._day_lines()),
            ("window", self._window_lines()),
            ("slots", [f"{account.fitting_slots} serve and fit, {account.free_slots} free"]),
            ("not serving", self._trouble_lines()),
            ("kept", [self._reservation_line()]),
            ("deadline", [deadline]),
            ("may start", self._estimate_lines(account)),
        ]

    def _ahead_lines(self, account: Account) -> list[str]:
        flows, earlier = account.flows_ahead, account.earlier_jobs
        lines = [f"{_count(len(earlier), 'job')} of its own flow"]
        lines += [f"  {self._earlier(each)}" for each in earlier[:SHOWN_MAX]]
        unnamed = len(earlier) - SHOWN_MAX
        lines.append(f"  and {_count(unnamed, 'job')} more" if unnamed > 0 else "")
        lines.append(f"{_count(len(flows), 'flow')} whose turn is before" if flows else "")
        lines += [
            f"  {flow}: tag {_tag(tag)}, {waiting} wait" for flow, tag, waiting in flows[:SHOWN_MAX]
        ]
        more = len(flows) - SHOWN_MAX
        return [*lines, f"  and {_count(more, 'flow')} more" if more > 0 else ""]

    def _earlier(self, job_id: JobId) -> str:
        job = self._state.jobs[job_id]
        return f"{job_id} {job.spec.name}" + (f", priority {job.priority}" if job.priority else "")

    def _limit_line(self) -> str:
        found = self._limit()
        if found is None:
            return ""
        name, since_ms = found
        since = "since before what was read" if since_ms is None else f"since {self._at(since_ms)}"
        return f"{name}, {since}"

    def _limit(self) -> tuple[str, int | None] | None:
        """Which limit holds it, and since when."""
        flow = self._state.flows[self._job.placed.flow]
        if flow.limit:
            return flow.limit, self._wait.blocked_since(flow.id)
        if self._wait.heading is Heading.POOL_LIMIT:
            return f"pool {flow.pool}", self._wait.heading_since
        return None

    def _day_lines(self) -> list[str]:
        """What of a limit a day is left, and when there is room for it at the latest."""
        hold = self._followed.headroom.day_hold(self._job)
        if hold is None:
            return []
        if hold.eases_at is None:
            return [hold.reason, "no room before something that runs has ended"]
        return [hold.reason, f"room at the latest at {self._when(hold.eases_at)}"]

    def _window_lines(self) -> list[str]:
        """What an external service has left of its minute."""
        api, window = self._window()
        if api is None:
            return []
        counted = (
            (window.requests, api.requests_per_minute, "requests a minute"),
            (window.tokens, api.tokens_per_minute, "tokens a minute"),
        )
        lines = [f"{used} of {most} {what}" for used, most, what in counted if most]
        next_ms = window.next_change_ms()
        if next_ms is not None:
            lines.append(f"the next call stops to count at {self._when(next_ms)}")
        return lines

    def _window(self) -> tuple[ApiLimits | None, Window]:
        pool = self._job.placed.pool
        return self._state.policy.pool(pool).api, self._state.windows.get(pool, Window())

    def _troubled(self) -> list[tuple[str, str]]:
        workers = [w for w in self._state.workers.values() if w.pool == self._job.placed.pool]
        found = ((worker.name, trouble(self._state, worker)) for worker in workers)
        return [(name, reason) for name, reason in found if reason]

    def _trouble_lines(self) -> list[str]:
        reasons = dict.fromkeys(reason for _, reason in self._troubled())
        lines = list(reasons)[:SHOWN_MAX]
        more = len(reasons) - SHOWN_MAX
        return [*lines, f"and {_count(more, 'reason')} more" if more > 0 else ""]

    def _reservation_line(self) -> str:
        reservation = self._state.reservations.get(self._job.placed.pool)
        if reservation is None:
            return ""
        whom = "it" if reservation.job == self._job.id else reservation.job
        return f"slots of {reservation.node} for {whom}, from {self._when(reservation.start_at)} on"

    def _estimate_lines(self, account: Account) -> list[str]:
        estimate = account.estimate
        if estimate.start_at is None:
            return [f"unknown: {estimate.unknown}"]
        return [
            f"about {self._when(estimate.start_at)}",
            "if what runs ends as expected and nothing else is submitted",
        ]

    def _assigned_lines(self) -> list[str]:
        assigned = self._wait.assigned
        assert assigned is not None
        decision = assigned.decision
        how = ", beside a reservation" if decision.backfill else ""
        return [
            f"attempt {decision.attempt} went to {', '.join(decision.slots)} "
            f"at {self._at(assigned.at)}{how}",
            f"start tag {_tag(decision.start_tag)}, finish tag {_tag(decision.finish_tag)}",
            f"the pool's virtual time became {_tag(assigned.virtual_time)}",
        ]

    def _wait_lines(self) -> list[str]:
        whole = short_duration(wait_ms(self._job, self._now_ms))
        parts = self._wait.breakdown(self._now_ms)
        largest = sorted(parts.items(), key=lambda part: -part[1])
        return [whole, *(f"  {short_duration(ms):>7} {name.value}" for name, ms in largest)]

    def _as_of(self) -> str:
        return f"{self._at(self._now_ms)}, page {self._state.seq} of {self._at(self._state.at)}"

    def _runs_row(self, runs: Runs) -> tuple[str, ...]:
        by = "time limit" if runs.enforced else "estimate"
        overrun = runs.ends_at < self._now_ms
        end = f"{self._at(runs.ends_at)} (past)" if overrun else self._when(runs.ends_at)
        return runs.job, runs.flow, str(runs.slots), end, by

    def _at(self, at_ms: int) -> str:
        return local_time(at_ms, self._now_ms)

    def _when(self, at_ms: int) -> str:
        if at_ms <= self._now_ms:
            return f"{self._at(at_ms)} (now due)"
        return f"{self._at(at_ms)} (in {short_duration(at_ms - self._now_ms)})"

    # -- JSON

    def json(self) -> dict[str, Any]:
        job = self._job
        parts = self._wait.breakdown(self._now_ms)
        return {
            "id": job.id,
            "name": job.spec.name,
            "state": job.state.value,
            "why": self.sentence(),
            "overdue": self._explainer.is_overdue(job),
            "flow": job.placed.flow,
            "priority": job.priority,
            "after": texts_of(job.spec.after),
            "page": self._state.seq,
            **times(
                as_of=self._now_ms,
                submitted_at=job.submitted_at,
                started_at=first_start(job),
                ended_at=job.ended_at,
                wakes_at=job.wakes_at or None,
                deadline_at=job.spec.deadline_at or None,
                begin_at=job.spec.begin_at or None,
            ),
            "wait_ms": wait_ms(job, self._now_ms),
            "wait": [{"reason": name.value, "part_ms": ms} for name, ms in parts.items()],
            "decision": self._decision_json(),
            "standing": None if self._account is None else self._account_json(self._account),
        }

    def _decision_json(self) -> dict[str, Any] | None:
        assigned = self._wait.assigned
        if assigned is None:
            return None
        decision = assigned.decision
        return {
            **times(assigned_at=assigned.at),
            "attempt": decision.attempt,
            "workers": list(decision.slots),
            "start_tag": decision.start_tag,
            "finish_tag": decision.finish_tag,
            "weight": decision.weight[0] / decision.weight[1],
            "virtual_time": assigned.virtual_time,
            "cost": decision.cost_ms,
            "backfill": decision.backfill,
        }

    def _account_json(self, account: Account) -> dict[str, Any]:
        limit, since_ms = self._limit() or ("", None)
        return {
            "discipline": account.discipline,
            "start_tag": account.tags.start,
            "finish_tag": account.tags.finish,
            "weight": account.tags.weight[0] / account.tags.weight[1],
            "virtual_time": account.virtual_time,
            "cost": account.cost,
            "owed_slots": account.owed_slots / 1000,
            "served_slots": account.served_slots / 1000,
            "pool_slots": account.pool_slots,
            "fitting_slots": account.fitting_slots,
            "free_slots": account.free_slots,
            "earlier_jobs": len(account.earlier_jobs),
            "earlier": list(account.earlier_jobs),
            "flows_ahead": [
                {"flow": flow, "tag": tag, "waiting": waiting}
                for flow, tag, waiting in account.flows_ahead
            ],
            "limit": limit or None,
            "day": self._day_json(),
            "window": self._window_json(),
            "not_serving": [
                {"worker": name, "reason": reason} for name, reason in self._troubled()
            ],
            **times(limit_at=since_ms, estimated_at=account.estimate.start_at),
            "estimate_unknown": account.estimate.unknown or None,
            "running": [
                {
                    "id": runs.job,
                    "flow": runs.flow,
                    "slots": runs.slots,
                    "enforced": runs.enforced,
                    **times(ends_at=runs.ends_at),
                }
                for runs in account.running
            ],
        }

    def _day_json(self) -> dict[str, Any] | None:
        hold = self._followed.headroom.day_hold(self._job)
        if hold is None:
            return None
        return {"limit": hold.limit, "reason": hold.reason, **times(eases_at=hold.eases_at)}

    def _window_json(self) -> dict[str, Any] | None:
        api, window = self._window()
        if api is None:
            return None
        return {
            "requests": window.requests,
            "requests_per_minute": api.requests_per_minute or None,
            "tokens": window.tokens,
            "tokens_per_minute": api.tokens_per_minute or None,
            **times(changes_at=window.next_change_ms()),
        }


def _tag(virtual_time: int) -> str:
    """Virtual time in slot-seconds (tokens: thousands) at weight 1."""
    return f"{virtual_time / SCALE / 1000:.3f}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
