"""What a screen shows: the folded journal, and what was reported since its last page.

Owns the reading for one view. Facts that no page holds yet are folded on top of a copy, in
the order a leader would take them, so that a job is seen the moment it was submitted, also
where no leader is alive. Nothing is decided here, and the journal's own state is not
touched.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ledger.admission import judge
from ledger.arrays import member_of
from ledger.events import Beat, FactRefused, Posted, Submitted, decode_beat
from ledger.journal import Journal
from ledger.keys import BEATS, FACTS, BeatKey, FactKey, after_stamp
from ledger.names import JobId, WriterName
from ledger.projection import Projection
from ledger.state import Job, State
from ledger.stores.base import Store
from ledger.timings import HOUR_MS, MINUTE_MS, PAGE_MAX_FACTS, Timings

UNPOSTED_MAX = 4 * PAGE_MAX_FACTS
"""How many facts behind the journal a view fetches; the rest is only counted."""

BEATS_RECENT_MS = 10 * MINUTE_MS
BEATS_OLD_MS = 2 * HOUR_MS
"""How far back beats are looked for: first, and for nodes that were not found there."""


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads, and how long nothing was heard of it (None: nobody ever led)."""

    leader: WriterName
    epoch: int
    silent_ms: int | None
    alive: bool


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a ledger; ``now_ms`` is the store's clock."""

    url: str
    projection: Projection
    page_at: int
    """When the newest page was posted; 0 where there is none."""
    now_ms: int
    unposted: frozenset[JobId]
    """Jobs whose submit stands in no page yet."""
    unposted_facts: int
    leadership: Leadership

    @property
    def state(self) -> State:
        return self.projection.state

    def job(self, job_id: JobId) -> Job | None:
        """The job of that id, also a member of an array that has not begun."""
        known = self.state.jobs.get(job_id)
        return self.projection.member_left(job_id) if known is None else known

    def array_of(self, job: Job) -> Job | None:
        """The array of which it is a member, as long as that is kept."""
        named = member_of(job.id)
        return self.state.jobs.get(named[0]) if named is not None else None

    def open_jobs(self) -> list[Job]:
        """Jobs that have not ended, in order of arrival."""
        jobs = [job for job in self.state.jobs.values() if not job.state.ended]
        return sorted(jobs, key=lambda job: job.arrival)

    def ended_jobs(self, count: int) -> list[Job]:
        """The last ``count`` that ended, newest first."""
        jobs = [self.state.jobs[job] for job in self.state.ended if job in self.state.jobs]
        ended = [job for job in jobs if job.state.ended]
        return sorted(ended, key=lambda job: (job.ended_at or 0, job.arrival))[: -count - 1 : -1]


class BeatSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A beat and the time at which it stood in the store."""

    at: int
    beat: Beat


def read_view(journal: Journal, timings: Timings) -> View:
    """Look at what ``journal`` has folded and at the facts behind it; two LISTs at most."""
    store, projection = journal.store, journal.projection
    page_at = projection.state.at
    leadership = _leadership(store, timings, projection.state)
    keys = _unposted_keys(store, timings, projection.state)
    if keys:
        projection = Projection(_copy(projection.state))
        projection.state.at = max(projection.state.at, store.clock_ms())
    unposted = _fold(store, projection, keys[:UNPOSTED_MAX])
    return View(
        url=store.url,
        projection=projection,
        page_at=page_at,
        now_ms=store.clock_ms(),
        unposted=unposted,
        unposted_facts=len(keys),
        leadership=leadership,
    )


def newest_beats(store: Store, now_ms: int, back_ms: int) -> dict[str, BeatSeen]:
    """The newest beat of each node within the last ``back_ms``. One LIST, one GET a writer."""
    newest: dict[WriterName, BeatKey] = {}
    for key in _beat_keys(store, now_ms - back_ms):
        if not key.writer.startswith("dispatcher"):
            newest[key.writer] = key
    bodies = store.get_many([key.format() for key in newest.values()])
    seen: dict[str, BeatSeen] = {}
    for key, body in zip(newest.values(), bodies, strict=True):
        try:
            beat = decode_beat(body) if body is not None else None
        except msgspec.DecodeError:
            continue
        if beat is None:
            continue
        known = seen.get(beat.node)
        if known is None or known.at < key.stamp_ms:
            seen[beat.node] = BeatSeen(at=key.stamp_ms, beat=beat)
    return seen


def _copy(state: State) -> State:
    """The journal's own state must stay what its pages say. O(state)."""
    return msgspec.json.decode(msgspec.json.encode(state), type=State)


def _leadership(store: Store, timings: Timings, state: State) -> Leadership:
    """A page or a dispatcher's beat within two leases is a sign of life."""
    now_ms, patience_ms = store.clock_ms(), 2 * timings.lease_ms
    newest_ms = state.at
    if now_ms - newest_ms > patience_ms:
        stamps = [
            key.stamp_ms
            for key in _beat_keys(store, now_ms - patience_ms)
            if key.writer.startswith("dispatcher")
        ]
        newest_ms = max([newest_ms, *stamps])
    silent_ms = max(0, now_ms - newest_ms) if newest_ms else None
    return Leadership(
        leader=state.leader,
        epoch=state.epoch,
        silent_ms=silent_ms,
        alive=silent_ms is not None and silent_ms <= patience_ms,
    )


def _beat_keys(store: Store, from_ms: int) -> Iterator[BeatKey]:
    for entry in store.list(BEATS, after_stamp(BEATS, from_ms)):
        try:
            yield BeatKey.parse(entry.key)
        except ValueError:  # a stray object is no beat
            continue


def _unposted_keys(store: Store, timings: Timings, state: State) -> list[FactKey]:
    """Keys of facts that no page holds, each fact once, in a leader's order. One LIST."""
    start_after = ""
    if state.newest_stamp_ms is not None:
        newest_ms = min(state.newest_stamp_ms, store.clock_ms())
        start_after = after_stamp(FACTS, newest_ms - timings.overlap_short_ms)
    found: dict[tuple[WriterName, int], FactKey] = {}
    for entry in store.list(FACTS, start_after):
        try:
            key = FactKey.parse(entry.key)
        except ValueError:  # a stray object is no fact
            continue
        if key.n >= state.writers.get(key.writer, 0):
            found.setdefault((key.writer, key.n), key)
    return list(found.values())


def _fold(store: Store, projection: Projection, keys: list[FactKey]) -> frozenset[JobId]:
    """Fold the facts at ``keys`` as far as each writer's order permits; whose submits they are."""
    bodies = store.get_many([key.format() for key in keys])
    submitted = []
    for key, body in zip(keys, bodies, strict=True):
        if body is None or key.n != projection.state.writers.get(key.writer, 0):
            continue
        match judge(key, body, too_old=False).posted:
            case Posted() as posted:
                projection.apply_fact(posted)
                if isinstance(posted.fact, Submitted):
                    submitted.append(posted.fact.job.id)
            case FactRefused() as refused:
                projection.apply_seen(refused)
    return frozenset(submitted)
