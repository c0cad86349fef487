"""The fair state of the second reader, written from docs/LEDGER_FORMAT.md alone.

As ``tests.naive_reader``, of which it is a part: obviously right, and no line shared with
``ledger.fair_state``.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

SCALE = 1_000_000
QUEUED = ("PENDING", "HELD")
OPEN = (*QUEUED, "ASSIGNED", "RUNNING", "STOPPING")

Body = dict[str, Any]


def zeros() -> defaultdict[str, int]:
    return defaultdict(int)


class NaiveFair:
    """What its section "Fair state" says: flows, pools, moves, digest."""

    def __init__(self) -> None:
        self.disciplines: dict[str, str] = {}
        self.divided: set[str] = set()
        self.turns: dict[str, list[int]] = {}
        self.flows: dict[str, defaultdict[str, int]] = {}
        self.pools: dict[str, defaultdict[str, int]] = {}
        self.blocked: set[str] = set()

    def count(
        self, job: Body, *, waiting: int, running: int, in_flow: bool = True, in_pool: bool = True
    ) -> None:
        for part, counts in (
            (self.flows[job["flow"]], in_flow),
            (self.pools[job["pool"]], in_pool),
        ):
            part["waiting"] += waiting * counts
            part["running"] += running
        pool = self.pools[job["pool"]]
        if pool["waiting"] == pool["running"] == 0:
            finishes = [
                f["F"] for name, f in self.flows.items() if name.endswith("/" + job["pool"])
            ]
            pool["V"] = max(pool["V"], *finishes)

    def join(self, job: Body, *, resumed: bool) -> None:
        self.flows.setdefault(job["flow"], zeros())
        jobs = 1 if job["left"] is None else len(job["left"])
        self.pools.setdefault(job["pool"], zeros())["waiting"] += jobs
        self.wait(job, jobs, resumed=resumed)
        if job["left"] is not None:
            self.keep_limit(job)

    def wait(self, job: Body, jobs: int, *, resumed: bool) -> None:
        flow = self.flows[job["flow"]]
        if flow["waiting"] == 0 and not resumed:
            flow["since"] = self.level(job["flow"])
        self.count(job, waiting=jobs, running=0, in_pool=False)

    def leave(self, job: Body) -> None:
        jobs = 1 if job["left"] is None else len(job["left"])
        self.count(job, waiting=-jobs, running=0, in_flow=not job["suspended"])
        job["suspended"] = False

    def dispatch(self, job: Body, decision: Body) -> None:
        pool = self.pools[job["pool"]]
        self.flows[job["flow"]]["F"] = decision["finish_tag"]
        self.turns[job["flow"]] = decision.get("turns", [])
        if not decision.get("backfill", False):
            wfq = self.disciplines.get(job["pool"], "wfq") == "wfq"
            pool["V"] = max(pool["V"], decision["finish_tag" if wfq else "start_tag"])
        self.count(job, waiting=-1, running=1)

    def book(self, job: Body, attempt: Body, cost_ms: int) -> None:
        numerator, denominator = attempt["weight"]
        before, after = (
            -(-cost * SCALE * denominator // numerator) for cost in (attempt["cost"], cost_ms)
        )
        attempt["cost"] = cost_ms
        self.flows[job["flow"]]["F"] += after - before

    def settle(self, job: Body, attempt: Body, cost_ms: int) -> None:
        if not attempt["settled"]:
            attempt["settled"] = True
            self.book(job, attempt, cost_ms)
            self.count(job, waiting=0, running=-1)

    def level(self, of: str, but: str = "") -> int:
        pool = of.rpartition("/")[2]
        peers = of.partition("/")[2] if pool in self.divided else pool
        waiting = [
            max(flow["F"], flow["since"])
            for name, flow in self.flows.items()
            if f"/{name}".endswith(f"/{peers}") and flow["waiting"]
            if name not in self.blocked and name != but
        ]
        return int(min([self.pools[pool]["V"], *waiting]))

    def keep_limit(self, whole: Body) -> None:
        begun = sum(
            job["state"] in OPEN and bool(job["attempts"]) for job in whole["members"].values()
        )
        is_full = 0 < whole["at_once"] <= begun
        if is_full and not whole["suspended"]:
            self.count(whole, waiting=-len(whole["left"]), running=0, in_pool=False)
        elif whole["suspended"] and not is_full:
            self.wait(whole, len(whole["left"]), resumed=False)
        whole["suspended"] = is_full

    def digest(self) -> str:
        texts = [
            f"{name} {flow['F']} {flow['since']} {flow['waiting']} {flow['running']}"
            + "".join(f" {turn}" for turn in self.turns.get(name, []))
            for name, flow in self.flows.items()
        ] + [
            f"{name} {pool['V']} {pool['waiting']} {pool['running']}"
            for name, pool in self.pools.items()
        ]
        hashes = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
        return f"{sum(int.from_bytes(h, 'big') for h in hashes) % 2**128:032x}"
