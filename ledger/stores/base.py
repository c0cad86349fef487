"""The store contract: five operations, no delete, no overwrite.

Owns the abstract ``Store`` that every part of gpuq talks to, and what its operations
promise (docs/ARCHITECTURE.md, "The store contract"). It refuses everything else: a
protocol that cannot name an overwrite cannot make one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import msgspec


class Won(msgspec.Struct, frozen=True):
    """This call created the key; the bytes there are the bytes given."""


class Lost(msgspec.Struct, frozen=True):
    """Somebody else created the key; ``body`` is what stands there."""

    body: bytes


class Entry(msgspec.Struct, frozen=True):
    """One key of a listing and the size of its object in bytes."""

    key: str
    size: int


class Store(ABC):
    """An append-only map from key to bytes.

    Every operation raises ``TransientError`` when the store gives no news (5xx, timeout,
    429, connection loss) and ``RequestError`` when the set-up is wrong (no such bucket,
    403, a clock so skewed that requests are refused).
    """

    url: str
    """What the user typed, without secrets: ``file:///path`` or ``s3://bucket/prefix``."""

    @abstractmethod
    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        """Create ``key`` where it matters who did.

        ``body`` is a JSON object that carries a fresh random ``put_id``. The call settles
        doubt itself: on 412, 409, timeout, connection loss or 5xx it reads the key; its
        own ``put_id`` there means Won, another body means Lost, nothing there means the
        same bytes are put again with jittered back-off. With ``patience_ms`` it gives up
        settling after that time and raises ``InDoubtError``: the write may still land.
        """

    @abstractmethod
    def put_once(self, key: str, body: bytes) -> None:
        """Create ``key`` where the name fixes the content; may be repeated freely.

        That the key exists with the same body is success; with another body it raises
        ``LedgerError``.
        """

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The bytes at ``key``, or None where it is not (yet) there."""

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Entries whose key begins with ``prefix`` and sorts after ``start_after``.

        In strict byte order of the whole key; pages are fetched as they are consumed.
        ``start_after`` is a whole key (prefix included) and exclusive.
        """

    @abstractmethod
    def clock_ms(self) -> int:
        """The store's clock, milliseconds since the epoch; good to about one second.

        Never steps back within a process.
        """

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """``[get(k) for k in keys]``; a store may fetch them side by side."""
        return [self.get(key) for key in keys]

    def sync(self, prefix: str) -> None:  # noqa: B027 - only the directory store needs it
        """Make what was read below ``prefix`` durable before it is acted upon.

        A directory store fsyncs the directory (a page that a reader saw must survive the
        power cut that its writer did not); a bucket is durable already.
        """
