"""The agreement between organizations, as data: weights, classes and pool rosters.

Owns the Structs that a ``policy`` fact carries and that the fold needs. Reading and
checking a policy file is ``scheduling.policy``. Weights are integers in thousandths, so
that ``0.5`` is exact.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import msgspec

WEIGHT_ONE = 1_000
"""The weight 1."""

CLASSES = ("system", "interactive", "batch")
"""The workload classes in the order in which ``strict`` serves them."""

_CLASS_WEIGHTS = {"system": 6_000, "interactive": 6_000, "batch": 1_000}

DISCIPLINES = ("wfq", "sfq", "fifo", "strict")


class Organization(msgspec.Struct, frozen=True, kw_only=True):
    """``weight`` in thousandths."""

    weight: int = WEIGHT_ONE


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves a pool, and in which order it serves its flows."""

    workers: tuple[str, ...] = ()
    """Names of workers or nodes, or shell patterns of either."""
    discipline: str = "wfq"

    def lists(self, worker: str) -> bool:
        """Whether the roster names this worker, or its node."""
        node = re.sub(r"-(gpu|cpu)\d+$", "", worker)
        return any(
            fnmatchcase(worker, pattern) or fnmatchcase(node, pattern) for pattern in self.workers
        )


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Without entries: every organization has weight 1 and pools are what workers say."""

    organizations: dict[str, Organization] = {}
    pools: dict[str, Pool] = {}
    class_weights: dict[str, int] = msgspec.field(default_factory=lambda: dict(_CLASS_WEIGHTS))

    def organization_weight(self, organization: str) -> int:
        """In thousandths, at least one; 1 for an organization that the policy does not name."""
        return max(1, self.organizations.get(organization, Organization()).weight)

    def class_weight(self, workload_class: str) -> int:
        """In thousandths, at least one: no policy, however wrong, may divide by nothing."""
        return max(1, self.class_weights.get(workload_class, WEIGHT_ONE))

    def discipline(self, pool: str) -> str:
        return self.pools.get(pool, Pool()).discipline

    def pool_of(self, worker: str, declared: str) -> str:
        """The pool whose roster lists the worker; else the one that it declared itself.

        A pool with a roster is served by its roster only: a worker that declares it but
        is not listed serves none (the empty string).
        """
        for name, pool in self.pools.items():
            if pool.lists(worker):
                return name
        if self.pools.get(declared, Pool()).workers:
            return ""
        return declared
