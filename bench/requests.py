"""Counting requests on the wire, by what they are for.

Owns the distinction between work and polling: polling are all LISTs, GETs of what is not
there (yet), and beats; everything else is caused by jobs.
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
    def is_polling(self) -> bool:
        return self.verb == "LIST" or not self.found or (self.verb, self.area) == ("PUT", "beats")


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
    """Requests beyond polling, divided by the number of jobs."""

    nodes: Mapping[Kind, float]
    commands: Mapping[Kind, float]

    @property
    def of_nodes(self) -> float:
        return sum(self.nodes.values())

    def rows(self) -> list[tuple[str, float]]:
        return [
            *((f"{kind.verb} {kind.area}", n) for kind, n in sorted(self.nodes.items())),
            ("by gpuq submit", sum(self.commands.values())),
        ]


def per_job(meters: Mapping[str, Meter], jobs: int) -> PerJob:
    """Of all meters but ``commands``, and of that one."""
    nodes: Counter[Kind] = Counter()
    commands: Counter[Kind] = Counter()
    for name, meter in meters.items():
        (commands if name == "commands" else nodes).update(meter.counts())

    def divided(counts: Counter[Kind]) -> dict[Kind, float]:
        return {kind: n / jobs for kind, n in counts.items() if not kind.is_polling}

    return PerJob(nodes=divided(nodes), commands=divided(commands))


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
