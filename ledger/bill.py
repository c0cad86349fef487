"""Sums of used and idle slot time, and of money, over a period.

Owns the cutting of time into lines: each millisecond of each slot that was there belongs to
one attempt or is idle, never to two. Where the records of two attempts overlap on a slot (the
clocks of two workers differ a little) the time is that of the one assigned later. What lies
outside the period is cut off. So the sums of any grouping are the time that slots were busy,
to the millisecond. Pure; integers, and exact fractions for money.

The price of a node is shared evenly, at each moment, by the slots that it has then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import msgspec

from ledger.keys import format_stamp
from ledger.names import NodeName, WorkerName
from ledger.timings import DAY_MS, HOUR_MS
from ledger.usage import Became, SlotUp, Use

DIMENSIONS = ("org", "user", "class", "pool", "node", "gpu", "job", "day")
ATTEMPT = "attempt"
"""One more dimension, for a job's receipt."""

NOBODY = ""
"""What an idle slot has for the dimensions of a job."""

PriceOf = Callable[[NodeName, int], int]
"""Millionths an hour of a node, given what the node itself said."""

Key = tuple[str, ...]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One slot for some time: held by ``use``, or idle where that is None."""

    worker: WorkerName
    node: NodeName
    gpu: str
    pool: str
    begin: int
    end: int
    price_micros: int
    use: Use | None = None
    asked_ms: int = 0
    """This slot's part of what the attempt asked for; in its first line only."""


class Sum(msgspec.Struct, kw_only=True):
    """Of one group: slot-milliseconds by what became of the work, and money (millionths)."""

    slot_ms: dict[Became, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Became, 0))
    idle_slot_ms: int = 0
    asked_slot_ms: int = 0
    attempts: set[tuple[str, int]] = msgspec.field(default_factory=set)
    money: Fraction = Fraction(0)
    idle_money: Fraction = Fraction(0)

    @property
    def occupied_slot_ms(self) -> int:
        return sum(self.slot_ms.values())

    @property
    def jobs(self) -> int:
        return len({job for job, _ in self.attempts})

    def add(self, line: Line, money: Fraction) -> None:
        if line.use is None:
            self.idle_slot_ms += line.end - line.begin
            self.idle_money += money
            return
        self.slot_ms[line.use.became] += line.end - line.begin
        self.asked_slot_ms += line.asked_ms
        self.attempts.add((line.use.job, line.use.attempt))
        self.money += money


class Bill(msgspec.Struct, kw_only=True):
    """``used`` and ``idle`` by group, in order of the groups' names; ``total`` is of both."""

    begin: int
    end: int
    by: tuple[str, ...]
    used: dict[Key, Sum]
    idle: dict[Key, Sum]
    total: Sum


def bill(
    uses: Iterable[Use],
    slots: Iterable[SlotUp],
    *,
    begin: int,
    end: int,
    by: Sequence[str],
    price_of: PriceOf = lambda node, told: told,
) -> Bill:
    """The sums of ``begin`` (inclusive) to ``end`` (ms since the epoch), grouped ``by``.

    What an attempt asked for counts where it began. O(n log n) in attempts and spans.
    """
    made = Bill(begin=begin, end=end, by=tuple(by), used={}, idle={}, total=Sum())
    for node, lines in _by_node(slot_lines(uses, slots)).items():
        shares = _Shares(lines)
        for line in lines:
            price = price_of(node, line.price_micros)
            for part in _parts(line, begin, end, daily="day" in by):
                money = price * shares.between(part.begin, part.end) / HOUR_MS
                groups = made.idle if part.use is None else made.used
                groups.setdefault(_key(part, by), Sum()).add(part, money)
                made.total.add(part, money)
    made.used, made.idle = dict(sorted(made.used.items())), dict(sorted(made.idle.items()))
    return made


# -- lines


def slot_lines(uses: Iterable[Use], slots: Iterable[SlotUp]) -> dict[WorkerName, list[Line]]:
    """By slot its lines, in order and without overlap; ``uses`` in order of assignment."""
    ups: dict[WorkerName, list[SlotUp]] = defaultdict(list)
    for up in slots:
        ups[up.worker].append(up)
    lines: dict[WorkerName, list[Line]] = defaultdict(list)
    for use in uses:
        for place, slot in enumerate(use.slots):
            part_ms, rest_ms = divmod(use.asked_ms, len(use.slots))
            line = Line(
                worker=slot.worker,
                node=slot.node,
                gpu=slot.gpu,
                pool=use.pool,
                begin=use.started_at,
                end=use.ended_at,
                price_micros=_price_at(ups[slot.worker], use.started_at),
                use=use,
                asked_ms=part_ms + (rest_ms if place == 0 else 0),
            )
            _lay(lines[slot.worker], line)
    for worker, spans in ups.items():
        busy = sorted((line for line in lines[worker] if line.end > line.begin), key=_place)
        lines[worker].extend(_idle(spans, busy))
    for of_slot in lines.values():
        of_slot.sort(key=_place)
    return lines


def _place(line: Line) -> tuple[int, int]:
    return line.begin, line.end


def _lay(lines: list[Line], line: Line) -> None:
    """Add a line that was assigned later; what it covers of the others is its own."""
    under: list[Line] = []
    while lines and lines[-1].end > line.begin:
        under.append(lines.pop())
    under.reverse()
    for other in under:
        end = min(other.end, max(other.begin, line.begin))
        if end > other.begin or other.asked_ms:
            lines.append(msgspec.structs.replace(other, end=end))
    lines.append(line)
    for other in under:
        begin = max(other.begin, line.end)
        if begin < other.end:
            lines.append(msgspec.structs.replace(other, begin=begin, asked_ms=0))


def _idle(ups: Sequence[SlotUp], busy: Sequence[Line]) -> Iterator[Line]:
    """What nobody held of the time in which a slot was there; ``busy`` in order."""
    at = 0
    for up in sorted(ups, key=lambda up: up.up_at):
        at = max(at, up.up_at)
        for line in busy[bisect_right(busy, at, key=lambda line: line.end) :]:
            if line.begin >= up.down_at:
                break
            if line.begin > at:
                yield _idle_line(up, at, line.begin)
            at = max(at, line.end)
        if at < up.down_at:
            yield _idle_line(up, at, up.down_at)
            at = up.down_at


def _idle_line(up: SlotUp, begin: int, end: int) -> Line:
    return Line(
        worker=up.worker,
        node=up.node,
        gpu=up.gpu,
        pool=up.pool,
        begin=begin,
        end=end,
        price_micros=up.price_micros,
    )


def _price_at(ups: Sequence[SlotUp], at: int) -> int:
    """What was told last by then, else first."""
    told = [up.price_micros for up in ups if up.up_at <= at] or [up.price_micros for up in ups[:1]]
    return told[-1] if told else 0


# -- parts and groups


def _parts(line: Line, begin: int, end: int, *, daily: bool) -> Iterator[Line]:
    """What of a line lies in the period; one part a day (UTC) where that is asked for."""
    first, last = max(line.begin, begin), min(line.end, end)
    asked_ms = line.asked_ms if begin <= line.begin < end else 0
    bounds = [first, last]
    if daily:
        midnights = range((first // DAY_MS + 1) * DAY_MS, last, DAY_MS)
        bounds = [first, *midnights, last]
    for place, (at, until) in enumerate(pairwise(bounds)):
        asked = asked_ms if place == 0 else 0
        if until > at or (until == at and asked):
            yield msgspec.structs.replace(line, begin=at, end=until, asked_ms=asked)


def _key(line: Line, by: Sequence[str]) -> Key:
    return tuple(_value(line, dimension) for dimension in by)


def _value(line: Line, dimension: str) -> str:
    use = line.use
    match dimension:
        case "pool" | "node" | "gpu":
            return str(getattr(line, dimension))
        case "day":
            stamp = format_stamp(line.begin)
            return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
        case "org":
            return NOBODY if use is None else use.organization
        case "user":
            return NOBODY if use is None else use.user
        case "class":
            return NOBODY if use is None else use.workload_class
        case "job":
            return NOBODY if use is None else use.job
        case "attempt":
            return NOBODY if use is None else str(use.attempt)
    raise AssertionError(f"no dimension {dimension!r}")


def _by_node(lines: dict[WorkerName, list[Line]]) -> dict[NodeName, list[Line]]:
    nodes: dict[NodeName, list[Line]] = defaultdict(list)
    for of_slot in lines.values():
        for line in of_slot:
            nodes[line.node].append(line)
    return nodes


class _Shares:
    """How much of its node's time one slot has: the integral of 1 / (slots that are there)."""

    def __init__(self, lines: Sequence[Line]) -> None:
        steps: dict[int, int] = defaultdict(int)
        for line in lines:
            steps[line.begin] += 1
            steps[line.end] -= 1
        self._at = sorted(steps)
        self._slots: list[int] = []
        self._sums: list[Fraction] = []
        slots, total = 0, Fraction(0)
        for place, at in enumerate(self._at):
            if slots:
                total += Fraction(at - self._at[place - 1], slots)
            slots += steps[at]
            self._slots.append(slots)
            self._sums.append(total)

    def between(self, begin: int, end: int) -> Fraction:
        """Milliseconds of the node that fall to a slot that is there all that time."""
        return self._until(end) - self._until(begin)

    def _until(self, at: int) -> Fraction:
        place = bisect_right(self._at, at) - 1
        slots = self._slots[place]
        return self._sums[place] + (Fraction(at - self._at[place], slots) if slots else 0)
