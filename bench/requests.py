"""Counting requests on the wire, by what they are for.

Owns the distinction between work and polling: polling are all LISTs, GETs of a predicted
next name (pages, messages, and whatever is not there yet), and beats, written and read.
Everything else is caused by jobs. Polls that found something are counted apart, because
there is one for each page or message and follower.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import msgspec

from tests.faults.proxy import Exchange, FaultProxy, Request

_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_NOT_FOUND = 404


class Kind(msgspec.Struct, frozen=True, order=True):
    """``verb`` is PUT, GET or LIST; ``area`` the first part of the key."""

    verb: str
    area: str
    found: bool

    @property
    def is_idle_polling(self) -> bool:
        """It would also be sent if there were no jobs."""
        return self.verb == "LIST" or not self.found or self.area == "beats"

    @property
    def is_found_by_polling(self) -> bool:
        return self.found and self.verb == "GET" and self.area in ("journal", "mailbox")


class Meter:
    """Counts what passes a proxy. Thread-safe."""

    def __init__(self, proxy: FaultProxy, bucket: str) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self._counts: Counter[Kind] = Counter()
        for method in _METHODS:
            proxy.inject(self._pass_on, method=method, count=None)

    def counts(self) -> Counter[Kind]:
        with self._lock:
            return Counter(self._counts)

    def reset(self) -> None:
        with self._lock:
            self._counts.clear()

    def _pass_on(self, exchange: Exchange) -> None:
        answer = exchange.forward()
        kind = self._kind(exchange.request, found=answer.status != _NOT_FOUND)
        with self._lock:
            self._counts[kind] += 1
        exchange.answer(answer)

    def _kind(self, request: Request, *, found: bool) -> Kind:
        if "list-type=2" in request.target:
            return Kind("LIST", "", found=True)
        key = request.path.removeprefix(f"/{self._bucket}/")
        return Kind(request.method, key.partition("/")[0], found=found)


class PerJob(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in one phase, divided by its number of jobs; idle polling is left out."""

    by_kind: Mapping[Kind, float]
    """What nodes ask and write, and what ``gpuq submit`` writes."""
    read_by_commands: float
    """What ``gpuq submit`` reads: the journal since the newest checkpoint, at each call."""

    @property
    def beyond_polling(self) -> float:
        return sum(n for kind, n in self.by_kind.items() if not kind.is_found_by_polling)

    @property
    def found_by_polling(self) -> float:
        return sum(n for kind, n in self.by_kind.items() if kind.is_found_by_polling)


def per_job(meters: Mapping[str, Meter], jobs: int) -> PerJob:
    """What was counted since the meters' last reset; the one of ``commands`` is no node."""
    by_kind: Counter[Kind] = Counter()
    read_by_commands = 0
    for name, meter in meters.items():
        for kind, count in meter.counts().items():
            if name == "commands" and kind.verb != "PUT":
                read_by_commands += count
            elif not kind.is_idle_polling:
                by_kind[kind] += count
    return PerJob(
        by_kind={kind: count / jobs for kind, count in by_kind.items()},
        read_by_commands=read_by_commands / jobs,
    )


class IdleHour(msgspec.Struct, frozen=True, kw_only=True):
    gets: float
    puts: float
    lists: float

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.gets, self.puts, self.lists


def hourly(counts: Counter[Kind], window_s: float) -> IdleHour:
    """What was counted in ``window_s`` seconds, per hour."""
    verbs: Counter[str] = Counter()
    for kind, count in counts.items():
        verbs[kind.verb] += count
    factor = 3600 / window_s
    return IdleHour(
        gets=verbs["GET"] * factor, puts=verbs["PUT"] * factor, lists=verbs["LIST"] * factor
    )
