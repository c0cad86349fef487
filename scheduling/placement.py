"""Where a job can run: slots of one node, grouped by what they offer.

Owns the index of slots that the scheduler asks. A *bank* is the slots of one node with
the same GPU; a job takes all its slots from one bank. A slot is *serving* when its worker
is ready, its node is fresh, not drained and not blocked and nothing is wrong with it, and
*free* when besides that nobody occupies it and its mailbox is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from ledger.events import AttemptRef, JobSpec, Liveness
from ledger.names import NodeName, WorkerName
from ledger.state import State, Worker


class Shape(NamedTuple):
    """What a job needs of a node; jobs of one shape fit in the same places."""

    slots: int
    gpu_type: str
    gpu_memory_bytes: int
    worker: str
    exclude: tuple[NodeName, ...]

    @staticmethod
    def of(spec: JobSpec) -> Shape:
        gpu_type, exclude = spec.gpu_type.lower(), tuple(sorted(set(spec.exclude)))
        return Shape(spec.slots, gpu_type, spec.gpu_memory_bytes, spec.worker, exclude)

    def accepts(self, node: NodeName, gpu_name: str, gpu_memory_bytes: int) -> bool:
        """Whether a slot of that node with this GPU would do (name by part, memory at least)."""
        return (
            self.gpu_type in gpu_name.lower()
            and gpu_memory_bytes >= self.gpu_memory_bytes
            and node not in self.exclude
        )


class BankKey(NamedTuple):
    """Order of preference among banks that fit: smaller GPUs first, then by node name."""

    gpu_memory_bytes: int
    node: NodeName
    gpu_name: str
    kind: str


class Bank:
    """The serving slots of one node with one kind of GPU; ``free`` in natural order."""

    def __init__(self, key: BankKey) -> None:
        self.key = key
        self.serving: set[WorkerName] = set()
        self.free: SortedList[WorkerName] = SortedList(key=natural)
        self._free: set[WorkerName] = set()

    def set_free(self, name: WorkerName, *, is_free: bool) -> None:
        """Whether the slot takes a job. O(1) where that was known, else O(log slots)."""
        if is_free == (name in self._free):
            return
        if is_free:
            self.free.add(name)
            self._free.add(name)
        else:
            self.free.remove(name)
            self._free.remove(name)


@lru_cache(maxsize=100_000)
def natural(name: str) -> tuple[str, int]:
    """Sort key by which ``gpu2`` comes before ``gpu10``."""
    match = re.fullmatch(r"(.*?)([0-9]*)", name)
    assert match is not None
    return match[1], int(match[2] or 0)


def trouble(state: State, worker: Worker, attempt: AttemptRef | None = None) -> str:
    """Why a worker serves nothing, in a few words; empty where it serves.

    With ``attempt``: why that cannot stay there. What probes a blocked node can.
    """
    node = state.nodes[worker.node]
    if not worker.ready:
        return f"{worker.name} never reported"
    if worker.retired:
        return f"{worker.name} has retired ({worker.retired})"
    if node.liveness is not Liveness.FRESH:
        return f"node {node.name} is {node.liveness.value}"
    if node.drained:
        return f"node {node.name} is drained ({node.drained})"
    if node.health.closed and (attempt is None or attempt != node.health.probe):
        return f"node {node.name} is blocked ({node.health.blocked})"
    return worker.problem


class Fleet:
    """Banks by pool. ``refresh`` is O(log slots), ``find`` O(banks of the pool)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._banks: dict[str, SortedDict[BankKey, Bank]] = {}
        self._place: dict[WorkerName, tuple[str, Bank]] = {}
        self._serves: dict[str, dict[Shape, bool]] = {}
        """By pool, what was asked since its serving slots last changed."""
        for name in state.workers:
            self.refresh(name)

    def refresh(self, name: WorkerName) -> set[str]:
        """Take over what the state says of one worker now; returns the pools concerned."""
        worker = self._state.workers[name]
        slot = worker.slot
        key = BankKey(slot.gpu_memory_bytes, worker.node, slot.gpu_name, slot.kind)
        place = self._place.get(name)
        serving = bool(worker.pool) and not trouble(self._state, worker)
        if place is None or not serving or place[1].key != key or place[0] != worker.pool:
            pools = {worker.pool, self._remove(name)}
            if not serving:
                return pools
            place = self._add(name, worker.pool, key)
        else:
            pools = {worker.pool}
        is_free = worker.occupant is None and worker.cursor == worker.next_message
        place[1].set_free(name, is_free=is_free)
        return pools

    def _add(self, name: WorkerName, pool: str, key: BankKey) -> tuple[str, Bank]:
        banks = self._banks.get(pool)
        if banks is None:
            banks = self._banks[pool] = SortedDict()
        bank = banks.get(key)
        if bank is None:
            bank = banks[key] = Bank(key)
        bank.serving.add(name)
        self._serves.pop(pool, None)
        place = self._place[name] = (pool, bank)
        return place

    def _remove(self, name: WorkerName) -> str:
        pool, bank = self._place.pop(name, ("", None))
        if bank is not None:
            bank.serving.discard(name)
            bank.set_free(name, is_free=False)
            self._serves.pop(pool, None)
            if not bank.serving:
                del self._banks[pool][bank.key]
        return pool

    def any_free(self, pool: str) -> bool:
        return any(bank.free for bank in self._banks.get(pool, {}).values())

    def serving(self, pool: str) -> int:
        """Slots that serve the pool, free or not. O(banks)."""
        return sum(len(bank.serving) for bank in self._banks.get(pool, {}).values())

    def free(self, pool: str) -> int:
        """Slots that could be taken now. O(banks)."""
        return sum(len(bank.free) for bank in self._banks.get(pool, {}).values())

    def has_gpus(self, pool: str) -> bool:
        """Whether slots that serve the pool are GPUs. O(banks)."""
        return any(key.kind == "gpu" for key in self._banks.get(pool, ()))

    def serves(self, pool: str, shape: Shape) -> bool:
        """Whether the shape would fit if every serving slot were free. Amortised O(1)."""
        known = self._serves.setdefault(pool, {})
        answer = known.get(shape)
        if answer is None:
            answer = known[shape] = any(True for _ in self.candidates(pool, shape))
        return answer

    def candidates(self, pool: str, shape: Shape) -> Iterator[Bank]:
        """Banks that would hold the shape if they were wholly free, by preference."""
        for bank in self._banks.get(pool, {}).values():
            if shape.worker and shape.worker not in bank.serving:
                continue
            key = bank.key
            if len(bank.serving) >= shape.slots and shape.accepts(
                key.node, key.gpu_name, key.gpu_memory_bytes
            ):
                yield bank

    def find(
        self, pool: str, shape: Shape, usable: Callable[[Bank], bool]
    ) -> tuple[WorkerName, ...] | None:
        """Free slots for the shape in a bank that ``usable`` allows, or None.

        The fullest bank that fits is taken, so that whole nodes stay free for large jobs.
        """
        best: Bank | None = None
        for bank in self.candidates(pool, shape):
            if len(bank.free) < shape.slots or not usable(bank):
                continue
            if shape.worker and WorkerName(shape.worker) not in bank.free:
                continue
            if best is None or (
                bank.key.gpu_memory_bytes == best.key.gpu_memory_bytes
                and len(bank.free) < len(best.free)
            ):
                best = bank
        if best is None:
            return None
        if shape.worker:
            lead = WorkerName(shape.worker)
            others = [name for name in best.free if name != lead]
            return (lead, *others[: shape.slots - 1])
        return tuple(best.free[: shape.slots])
