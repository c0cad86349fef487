"""Which nodes are silent, judged on the leader's own clock.

Owns the judgement that leads to ``stale`` and ``gone``. Silence is counted since the
leader first saw a node's newest sign of life, on the clock that also runs in suspend, and
only over time in which its own reads and beats succeeded: after a gap everyone looks dead.
No other process's stamp enters.
"""

from __future__ import annotations

from ledger.events import Liveness, NodeSeen
from ledger.names import NodeName
from ledger.state import State
from ledger.timings import Timings


class LivenessJudge:
    """One leader's view of the nodes. All times are boot-clock milliseconds."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._observed_ms = 0
        self._read_at_ms: int | None = None
        self._judges_from_ms = 0
        self._signs: dict[NodeName, int] = {}

    def read_succeeded(self, boot_ms: int) -> None:
        """A round of reading facts and beats went through at ``boot_ms``, and so do writes.

        A gap longer than the lease is not counted as anybody's silence, and nobody is
        judged for two beat intervals after it.
        """
        gap_ms = 0 if self._read_at_ms is None else boot_ms - self._read_at_ms
        self._read_at_ms = boot_ms
        if gap_ms > self._timings.lease_ms:
            self._judges_from_ms = self._observed_ms + 2 * self._timings.beat_ms
        else:
            self._observed_ms += gap_ms

    def sign_of_life(self, node: NodeName) -> None:
        """A beat or fact of any writer of the node was seen for the first time."""
        self._signs[node] = self._observed_ms

    def judge(self, state: State) -> list[NodeSeen]:
        """What changed against the state. O(nodes)."""
        if self._observed_ms < self._judges_from_ms:
            return []
        seen = []
        for name, node in state.nodes.items():
            liveness = self._liveness(name, node.liveness)
            if liveness is not node.liveness:
                seen.append(NodeSeen(node=name, liveness=liveness))
        return seen

    def _liveness(self, node: NodeName, known: Liveness) -> Liveness:
        if node not in self._signs:
            if known is Liveness.GONE:
                return known
            silent_ms = self._timings.fresh_ms if known is Liveness.STALE else 0
            self._signs[node] = self._observed_ms - silent_ms
        silence_ms = self._observed_ms - self._signs[node]
        if silence_ms >= self._timings.lost_ms:
            return Liveness.GONE
        if silence_ms >= self._timings.fresh_ms:
            return Liveness.STALE
        return Liveness.FRESH
