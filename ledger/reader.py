"""Facts and beats on their way in.

Owns the tailing of ``facts/`` and ``beats/`` (docs/ARCHITECTURE.md, "What stands in the
bucket", and rules 14 and 15). A LIST may be late, may skip and may repeat; a GET may not
yet find what a LIST showed. None of it loses or doubles a fact, or gives out the facts of
one writer in another order than that of their numbers:

- a LIST starts an overlap before the newest admitted fact, and now and then a long one;
- a gap in the numbers is closed by the key that the later fact names as its predecessor;
- a beat names the newest fact of each writer of its node (``FactTail.hint``).

What is new is judged by the table of writers that each poll is given, so that a tail
remembers nothing that the journal does not say. Whether a page may hold it is judged by
``ledger.admission``.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ledger.admission import Verdict, judge, too_large
from ledger.clock import Clock
from ledger.events import Beat, FactRefused, Posted, decode_beat
from ledger.keys import BEATS, FACTS, BeatKey, FactKey, after_stamp
from ledger.names import WriterName
from ledger.stores.base import Entry, Store
from ledger.timings import FACT_MAX_BYTES, PAGE_MAX_BYTES, PAGE_MAX_FACTS, Timings

_WALK_STEPS = 32
"""How many predecessors of one writer are fetched, one after the other, in one poll."""


class _Sight(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was listed or named. The age of a fact is judged at its first sight."""

    key: FactKey
    too_old: bool


class _Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal has admitted so far, as one poll was told."""

    writers: Mapping[WriterName, int]
    oldest_ms: int
    """A fact with an older stamp is refused."""

    def next_n(self, writer: WriterName) -> int:
        return self.writers.get(writer, 0)


class FactTail:
    """Follows ``facts/``. One tail per reader; not for several threads.

    In an idle ledger a poll is one LIST of what came since the newest admitted fact. A
    backlog is listed once and then fetched page by page from its old end: whoever takes
    over in the middle looks only so far behind the newest admitted fact.
    """

    def __init__(self, store: Store, clock: Clock, timings: Timings) -> None:
        self._store = store
        self._clock = clock
        self._timings = timings
        self._held: dict[WriterName, dict[int, Verdict]] = {}
        self._wanted: dict[str, _Sight] = {}
        """Seen, not yet asked for."""
        self._missing: dict[str, _Sight] = {}
        """Seen and asked for, and not there: a LIST can be ahead of a GET."""
        self._hints: dict[WriterName, FactKey] = {}
        self._strays: list[str] = []
        self._strays_reported: set[str] = set()
        self._journal_at_ms = 0
        self._middle_at: int | None = None
        self._long_at: int | None = None

    def hint(self, newest: Mapping[str, str]) -> None:
        """Take note of ``newest`` of a beat: writer to the key of its newest fact."""
        for writer, text in newest.items():
            key = self._parse(text)
            if key is None or key.writer != writer:
                continue
            noted = self._hints.get(key.writer)
            if noted is None or noted.n < key.n:
                self._hints[key.writer] = key

    def take_strays(self) -> list[str]:
        """Keys below ``facts/`` that no fact can have; each is given out once."""
        strays, self._strays = self._strays, []
        return strays

    def poll(
        self,
        writers: Mapping[WriterName, int],
        newest_admitted_ms: int | None,
        journal_at_ms: int,
        held_stamp_ms: int | None = None,
    ) -> list[Posted | FactRefused]:
        """What the next page may hold: at most PAGE_MAX_FACTS and PAGE_MAX_BYTES.

        All arguments are of one fold of the journal: ``writers`` says for each writer the
        number that comes next (0 where it says nothing), ``newest_admitted_ms`` the
        newest stamp that was admitted (None: there is none), where a stamp counts as no
        later than the ``at`` of its page, and ``journal_at_ms`` the ``at`` of the last
        page. A fact is given out by every poll until ``writers`` has passed it; where the
        fold is an older one than before, it is read again. The facts of one writer come in
        the order of their numbers, and beyond that all come in the order of stamp, writer
        and number.

        A fact is too old if its stamp is more than ``fact_age_ms`` behind both the last
        page and the newest admitted fact when it is first seen. (Against the last page
        alone, the first page after a long gap would make the rest of a backlog too old.)

        Raises TransientError where the store gives no news; nothing is lost by that.
        One LIST unless a page is full without it, one GET a fact, O(held + wanted) time.
        """
        if journal_at_ms < self._journal_at_ms:
            # An older fold: what was passed by may be wanted again.
            self._long_at = None
        self._journal_at_ms = journal_at_ms
        newest_page_or_fact_ms = min(journal_at_ms, newest_admitted_ms or 0)
        admitted = _Admitted(
            writers=writers, oldest_ms=newest_page_or_fact_ms - self._timings.fact_age_ms
        )
        self._forget(admitted)
        page, full = self._page(admitted)
        if full:
            return page
        self._look(admitted, newest_admitted_ms, held_stamp_ms)
        self._fetch(self._next_batch(admitted))
        self._close_gaps(admitted)
        page, _ = self._page(admitted)
        return page

    # --- what is there ---------------------------------------------------------------

    def _look(
        self, admitted: _Admitted, newest_admitted_ms: int | None, held_stamp_ms: int | None
    ) -> None:
        """Unless there is a backlog: note what a LIST shows, and then what beats named.

        A beat names the newest. Admitting that before a LIST went over what is older would
        move the next start past it.
        """
        if len(self._wanted) >= PAGE_MAX_FACTS:
            return
        now_ms = self._clock.boot_ms()
        overlap_ms = self._overlap_ms(now_ms)
        start_after = ""
        if newest_admitted_ms is not None:
            # A stamp from the future must not move the start past what is still to come, nor
            # past what came while nobody read: the clock went on, the last page did not.
            newest_ms = min(newest_admitted_ms, self._journal_at_ms, self._store.clock_ms())
            if held_stamp_ms is not None and overlap_ms >= self._timings.overlap_long_ms:
                newest_ms = min(newest_ms, held_stamp_ms)
            start_after = after_stamp(FACTS, newest_ms - overlap_ms)
        for entry in self._store.list(FACTS, start_after):
            key = self._parse(entry.key)
            if key is not None:
                self._sight(key, admitted, entry.size)
        for named in self._hints.values():
            self._sight(named, admitted)
        self._hints.clear()
        if overlap_ms >= self._timings.overlap_middle_ms:
            self._middle_at = now_ms
        if overlap_ms >= self._timings.overlap_long_ms:
            self._long_at = now_ms

    def _overlap_ms(self, now_ms: int) -> int:
        """How far back the LIST that is due now begins; the first one is a long one."""
        timings = self._timings
        if self._long_at is None or now_ms - self._long_at >= timings.overlap_long_every_ms:
            return timings.overlap_long_ms
        if self._middle_at is None or now_ms - self._middle_at >= timings.overlap_middle_every_ms:
            return timings.overlap_middle_ms
        return timings.overlap_short_ms

    def _parse(self, text: str) -> FactKey | None:
        try:
            return FactKey.parse(text)
        except ValueError:
            if text not in self._strays_reported:
                self._strays_reported.add(text)
                self._strays.append(text)
            return None

    def _sight(self, key: FactKey, admitted: _Admitted, size_bytes: int = 0) -> None:
        """Want the fact at ``key``, unless it is known. One too large is never fetched."""
        text = key.format()
        if text in self._wanted or text in self._missing or not self._is_news(key, admitted):
            return
        if size_bytes > FACT_MAX_BYTES:
            self._hold(key, too_large(key, size_bytes))
        else:
            too_old = key.stamp_ms < admitted.oldest_ms
            self._wanted[text] = _Sight(key=key, too_old=too_old)

    def _is_news(self, key: FactKey, admitted: _Admitted) -> bool:
        return key.n >= admitted.next_n(key.writer) and key.n not in self._held.get(key.writer, {})

    # --- bodies ----------------------------------------------------------------------

    def _next_batch(self, admitted: _Admitted) -> list[_Sight]:
        """What to ask for: what was not there before, and the first of what is wanted."""
        for sights in (self._missing, self._wanted):
            for text in [t for t, s in sights.items() if not self._is_news(s.key, admitted)]:
                del sights[text]
        return [
            *heapq.nsmallest(PAGE_MAX_FACTS, self._missing.values(), key=_place_of_sight),
            *heapq.nsmallest(PAGE_MAX_FACTS, self._wanted.values(), key=_place_of_sight),
        ]

    def _fetch(self, sights: list[_Sight]) -> None:
        """Get, judge and hold these facts, each of which is wanted or missing."""
        texts = [sight.key.format() for sight in sights]
        for sight, text, body in zip(sights, texts, self._store.get_many(texts), strict=True):
            self._wanted.pop(text, None)
            self._missing.pop(text, None)
            if body is None:
                self._missing[text] = sight
            else:
                self._hold(sight.key, judge(sight.key, body, too_old=sight.too_old))

    def _hold(self, key: FactKey, held: Verdict) -> None:
        """The first copy of a fact that was put twice is the one that counts."""
        self._held.setdefault(key.writer, {}).setdefault(key.n, held)

    def _close_gaps(self, admitted: _Admitted) -> None:
        """Fetch the predecessors that held facts name, step by step."""
        for _ in range(_WALK_STEPS):
            for key in self._predecessors(admitted):
                self._sight(key, admitted)
            texts = [key.format() for key in self._predecessors(admitted)]
            wanted = [self._wanted[text] for text in texts if text in self._wanted]
            if not wanted:
                return
            self._fetch(wanted)

    def _predecessors(self, admitted: _Admitted) -> Iterator[FactKey]:
        """For each writer with a gap: the key of the last fact in the first gap."""
        for writer, facts in self._held.items():
            n = self._after_run(writer, admitted)
            later = min((m for m in facts if m > n), default=None)
            if later is None:
                continue
            try:
                key = FactKey.parse(facts[later].prev)
            except ValueError:
                continue
            if (key.writer, key.n) == (writer, later - 1):
                yield key

    def _after_run(self, writer: WriterName, admitted: _Admitted) -> int:
        """The first number of ``writer`` that is neither admitted nor held."""
        n = admitted.next_n(writer)
        while n in self._held[writer]:
            n += 1
        return n

    # --- what is given out -----------------------------------------------------------

    def _forget(self, admitted: _Admitted) -> None:
        """Drop the bodies that have been admitted."""
        for writer, facts in list(self._held.items()):
            next_n = admitted.next_n(writer)
            for n in [n for n in facts if n < next_n]:
                del facts[n]
            if not facts:
                del self._held[writer]

    def _page(self, admitted: _Admitted) -> tuple[list[Posted | FactRefused], bool]:
        """What can be given out, and whether a limit left more of it for the next page."""
        page: list[Posted | FactRefused] = []
        page_bytes = 0
        for held in self._in_order(admitted):
            page_bytes += held.page_bytes
            if len(page) == PAGE_MAX_FACTS or page_bytes > PAGE_MAX_BYTES:
                return page, True
            page.append(held.posted)
        return page, False

    def _in_order(self, admitted: _Admitted) -> Iterator[Verdict]:
        """The held facts by place, as far as the order of each writer's numbers permits."""
        heads = []
        for writer, facts in self._held.items():
            n = admitted.next_n(writer)
            if n in facts:
                heads.append(_place(facts[n].key))
        heapq.heapify(heads)
        while heads:
            _, writer, n = heads[0]
            yield self._held[writer][n]
            following = self._held[writer].get(n + 1)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, _place(following.key))


class BeatTail:
    """Follows ``beats/``: of each writer the newest beat, as it comes."""

    def __init__(self, store: Store, clock: Clock, timings: Timings) -> None:
        self._store = store
        self._clock = clock
        self._timings = timings
        self._newest_ms: int | None = None
        self._long_at: int | None = None
        self._given: dict[WriterName, BeatKey] = {}

    def poll(self) -> list[Beat]:
        """The newest beat of each writer that beat since the last poll, in order of keys.

        The first poll looks back three beat intervals, later ones ``overlap_middle_ms``
        behind the newest stamp, and once a beat interval ``overlap_long_ms``: a node whose
        clock is that far behind is still alive. A writer's first beat that is older than
        three intervals may be of a dead node, so it is noted, and the next one given. What
        cannot be read of a beat (a newer version) is left out: it is still a sign of life.
        Raises TransientError; nothing is lost by that. One LIST (of 1,000 keys each), one
        GET a beat.
        """
        start_after = after_stamp(BEATS, self._next_start_ms())
        fresh = self._without_old(self._fresh(self._store.list(BEATS, start_after)))
        bodies = self._store.get_many([key.format() for key in fresh])
        beats = []
        for key, body in zip(fresh, bodies, strict=True):
            if body is not None:
                beats.append(_read_beat(key, body))
                self._given[key.writer] = key
                self._newest_ms = max(self._newest_ms or 0, key.stamp_ms)
        self._forget()
        return beats

    def _next_start_ms(self) -> int:
        timings, now_ms, boot_ms = self._timings, self._store.clock_ms(), self._clock.boot_ms()
        if self._long_at is None:
            self._long_at = boot_ms + timings.beat_ms
            return now_ms - 3 * timings.beat_ms
        newest_ms = min(self._newest_ms or now_ms, now_ms)
        if boot_ms >= self._long_at:
            self._long_at = boot_ms + timings.beat_ms
            return newest_ms - timings.overlap_long_ms
        return newest_ms - timings.overlap_middle_ms

    def _without_old(self, keys: list[BeatKey]) -> list[BeatKey]:
        """Note, and leave out, what may have stood there for hours."""
        recent_ms = self._store.clock_ms() - 3 * self._timings.beat_ms
        old = [k for k in keys if k.stamp_ms < recent_ms and k.writer not in self._given]
        self._given.update((key.writer, key) for key in old)
        return [key for key in keys if key not in old]

    def _forget(self) -> None:
        """Of writers whose newest beat no LIST will show again nothing need be known."""
        newest_ms = min(self._newest_ms or 0, self._store.clock_ms())
        oldest_ms = newest_ms - 2 * self._timings.overlap_long_ms
        self._given = {w: key for w, key in self._given.items() if key.stamp_ms >= oldest_ms}

    def _fresh(self, entries: Iterable[Entry]) -> list[BeatKey]:
        """Of each writer the newest listed beat, if it is newer than the one given out."""
        newest: dict[WriterName, BeatKey] = {}
        for entry in entries:
            if entry.size > FACT_MAX_BYTES:
                continue
            try:
                key = BeatKey.parse(entry.key)
            except ValueError:
                # Nothing rests on what is no beat.
                continue
            known = newest.get(key.writer) or self._given.get(key.writer)
            if known is None or known.n < key.n:
                newest[key.writer] = key
        return sorted(newest.values(), key=BeatKey.format)


def _place(key: FactKey) -> tuple[int, WriterName, int]:
    """The order of facts. (As text, number 10 of a busy millisecond is before number 2.)"""
    return key.stamp_ms, key.writer, key.n


def _place_of_sight(sight: _Sight) -> tuple[int, WriterName, int]:
    return _place(sight.key)


def _read_beat(key: BeatKey, body: bytes) -> Beat:
    """The beat at ``key``, with the fields of ``body`` that can be read."""
    try:
        beat = decode_beat(body)
    except (msgspec.DecodeError, RecursionError):
        beat = Beat(writer=key.writer, n=key.n, **{"at": key.stamp_ms, **_readable(body)})
    return msgspec.structs.replace(beat, writer=key.writer, n=key.n)


def _readable(body: bytes) -> dict[str, Any]:
    """Those fields of a beat that have the type which this version knows."""
    try:
        raw = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    readable = {}
    for field in msgspec.structs.fields(Beat):
        if field.name in raw and field.name not in ("writer", "n"):
            with contextlib.suppress(msgspec.ValidationError):
                readable[field.name] = msgspec.convert(raw[field.name], field.type)
    return readable
