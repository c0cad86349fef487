"""What the limits a day count: GPU time and money, by whose limit they count.

Owns one rule. What an attempt may use counts from its dispatch until it ends; what it did use
counts from then until the first full hour (UTC) that lies 24 hours later. Of one attempt
at most 24 hours of GPU time count, as no day holds more of it. So whatever 24 hours one looks
at, what was used in them never was more than what counted at their end. Pure integers; the
caller brings the time.
"""

from __future__ import annotations

import msgspec

from ledger.events import Report
from ledger.names import FlowId
from ledger.policy import Price, Scope, scopes_of
from ledger.timings import DAY_MS, HOUR_MS


class Use(msgspec.Struct, frozen=True, omit_defaults=True):
    """GPU-milliseconds, and money in millionths of its unit."""

    gpu_ms: int = 0
    money_micros: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.gpu_ms + other.gpu_ms, self.money_micros + other.money_micros)

    def beyond(self, other: Use) -> Use:
        """What of this is more than ``other``, each on its own."""
        return Use(
            max(0, self.gpu_ms - other.gpu_ms), max(0, self.money_micros - other.money_micros)
        )

    def times(self, factor: int) -> Use:
        return Use(factor * self.gpu_ms, factor * self.money_micros)


NOTHING = Use()

Hours = dict[int, dict[FlowId, Use]]
"""By hour since the epoch and flow: what attempts had used that ended in it."""


class Draw(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt draws on the limits a day."""

    gpus: int = 0
    price: Price = Price()
    """Of its pool when it was dispatched."""
    reserved: Use = NOTHING
    """What it may use; this counts until it ends."""
    booked: Use = NOTHING
    """What was booked as used."""

    @property
    def open(self) -> Use:
        """What counts for it while it runs, beside what is booked."""
        return self.reserved.beyond(self.booked)


def gpu_use_ms(gpus: int, run_ms: int) -> int:
    """GPU-milliseconds that count for a run: at most a day of it."""
    return gpus * min(max(0, run_ms), DAY_MS)


def money_micros(price: Price, requests: int, input_tokens: int, output_tokens: int) -> int:
    """What such a call costs, rounded up."""
    tokens = input_tokens * price.input_micros + output_tokens * price.output_micros
    return requests * price.request_micros - (-tokens // 1_000)


def reported_micros(draw: Draw, requests: int, report: Report | None) -> int:
    """What a call costs that asked for ``requests`` and reported this; else what is reserved."""
    if report is None or not (report.requests or report.input_tokens or report.output_tokens):
        return draw.reserved.money_micros
    made = report.requests or requests
    return money_micros(draw.price, made, report.input_tokens, report.output_tokens)


class DailyUse:
    """Sums over ``hours``, which it changes. ``book`` and ``total`` are O(1)."""

    def __init__(self, hours: Hours) -> None:
        self._hours = hours
        self._totals: dict[Scope, Use] = {}
        for flows in hours.values():
            for flow, use in flows.items():
                self._add(flow, use)

    def total(self, scope: Scope) -> Use:
        """What counts as used by those whom ``scope`` names."""
        return self._totals.get(scope, NOTHING)

    def book(self, flow: FlowId, use: Use, at: int) -> None:
        """An attempt of the flow ended at ``at`` (ms) and had used this."""
        if use != NOTHING:
            flows = self._hours.setdefault(at // HOUR_MS, {})
            flows[flow] = flows.get(flow, NOTHING).plus(use)
            self._add(flow, use)

    def forget(self, at: int) -> list[Scope]:
        """Let go what no longer counts at ``at``; whose it was. Amortised O(1) a booking."""
        eased: dict[Scope, None] = {}
        for hour in [hour for hour in self._hours if counts_until(hour) <= at]:
            for flow, use in self._hours.pop(hour).items():
                self._add(flow, use.times(-1))
                eased.update(dict.fromkeys(scopes_of(flow)))
        return list(eased)

    def next_change_ms(self) -> int | None:
        """When the oldest hour stops to count."""
        return counts_until(min(self._hours)) if self._hours else None

    def eases_at(self, scope: Scope, excess: Use) -> int | None:
        """When so much less will count as used, by time alone; None: never. O(hours * flows)."""
        for hour in sorted(self._hours):
            for flow, use in self._hours[hour].items():
                if scope in scopes_of(flow):
                    excess = excess.beyond(use)
            if excess == NOTHING:
                return counts_until(hour)
        return None

    def _add(self, flow: FlowId, use: Use) -> None:
        for scope in scopes_of(flow):
            total = self.total(scope).plus(use)
            if total == NOTHING:
                self._totals.pop(scope, None)
            else:
                self._totals[scope] = total


def counts_until(hour: int) -> int:
    """Until when what was booked in that hour counts (ms): a full hour, a day or more later."""
    return (hour + 1) * HOUR_MS + DAY_MS
