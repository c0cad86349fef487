"""Facts, beats and blobs on their way out.

Owns the order and the acknowledgement of what a process reports (docs/ARCHITECTURE.md,
"What stands in the bucket", and rules 9 and 14): a fact is durable in the spool before it
is sent; fact n+1 is put only after fact n is acknowledged; each try has a fresh stamp on
the store's clock that never goes back within a writer; each fact names the key of its
predecessor. What a crash costs:

- before the spool has the fact: the fact, which nobody was told of;
- between the spool and the put: nothing, the next ``drain_spools`` sends it;
- between the put and the acknowledgement in the spool: a second copy under another stamp.

Refuses facts that no reader would admit (larger than ``FACT_MAX_BYTES``).
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import deque

from msgspec.structs import replace

from ledger.errors import GpuqError, RequestError, TransientError
from ledger.events import AnyFact, Beat, encode, kind_of
from ledger.keys import BeatKey, FactKey, blob_key
from ledger.names import WriterName, token
from ledger.spool import Spool, SpoolStorage
from ledger.stores.base import Store
from ledger.timings import BLOB_MAX_BYTES, FACT_MAX_BYTES, Timings

_TRIES = 3
"""How often a fact is put in one flush while the acknowledgements come too late."""


def new_writer(rng: random.Random, name: str) -> WriterName:
    """A new incarnation of ``name``: ``node3-gpu0~k3f9x2ab``."""
    return WriterName(f"{name}~{token(rng)}")


class FactOutbox:
    """The facts of one spool, put in the order of their numbers. Owns the spool."""

    def __init__(self, store: Store, timings: Timings, spool: Spool) -> None:
        content = spool.content()
        self._store = store
        self._timings = timings
        self._spool = spool
        self._pending = deque(content.pending)
        self._newest_key = content.newest_key
        self._stamp_ms = FactKey.parse(self._newest_key).stamp_ms if self._newest_key else 0

    @property
    def writer(self) -> WriterName:
        return self._spool.writer

    @property
    def pending(self) -> int:
        """How many facts are durable here and not yet acknowledged."""
        return len(self._pending)

    @property
    def newest_key(self) -> str:
        """The key of the newest acknowledged fact, as a beat names it; or empty."""
        return self._newest_key

    def flush(self) -> None:
        """Put everything that is pending, in order; one PUT a fact.

        Raises TransientError where the store gives no news or answers too late. Nothing is
        lost or reordered by that: call again.
        """
        while self._pending:
            fact = self._pending[0]
            self._newest_key = self._put(fact)
            self._pending.popleft()
            # The fact is in the bucket, whatever this disk says: at worst a drainer puts it
            # once more. A later acknowledgement covers the ones before it.
            with contextlib.suppress(RequestError):
                self._spool.append_acknowledged(fact.n, self._newest_key)

    def close(self) -> None:
        """Leave what is pending to ``drain_spools``; a spool without any is removed."""
        if self._pending:
            self._spool.close()
        else:
            self._spool.remove()

    def _append(self, fact: AnyFact) -> None:
        self._spool.append_fact(fact)
        self._pending.append(fact)

    def _put(self, fact: AnyFact) -> str:
        """The key under which ``fact`` is acknowledged.

        A fact that stands under an old stamp may be behind what every reader has passed,
        so it only counts if the answer came within ``timings.ack_ms`` of the stamp.
        """
        body = encode(replace(fact, prev=self._newest_key))
        for _ in range(_TRIES):
            self._stamp_ms = max(self._stamp_ms, self._store.clock_ms())
            key = _fact_key(fact, self._stamp_ms)
            self._store.put_once(key, body)
            if self._store.clock_ms() - self._stamp_ms < self._timings.ack_ms:
                return key
        raise TransientError(
            f"{self._store.url} took longer than {self._timings.ack_ms} ms for each of "
            f"{_TRIES} puts of {key}"
        )


class FactWriter(FactOutbox):
    """The outbox of one living process: a new incarnation of ``name`` that numbers its facts.

    Not for several threads. Raises RequestError where the spool cannot be made.
    """

    def __init__(
        self,
        store: Store,
        rng: random.Random,
        timings: Timings,
        spools: SpoolStorage,
        name: str,
    ) -> None:
        super().__init__(store, timings, spools.create(new_writer(rng, name)))
        self._next_n = 0

    def report(self, fact: AnyFact) -> int:
        """Give ``fact`` its writer and number (returned) and make it durable; no request.

        Raises RequestError where it is too large or the disk does not take it: then it
        was not reported and its number is free.
        """
        numbered = replace(fact, writer=self.writer, n=self._next_n, prev="")
        _check_size(numbered)
        self._append(numbered)
        self._next_n += 1
        return numbered.n


def drain_spools(store: Store, timings: Timings, spools: SpoolStorage) -> dict[WriterName, int]:
    """Send what processes that are gone left in their spools; who left how many facts.

    They go out under the names and numbers of their own writers, each spool by one
    process at a time, and a spool that is done is removed. A process calls this before it
    reports anything itself. Raises as ``FactOutbox.flush`` and ``Spool.content`` do; what
    was not sent is sent by the next call.
    """
    sent: dict[WriterName, int] = {}
    for spool in spools.abandoned():
        try:
            outbox = FactOutbox(store, timings, spool)
        except GpuqError:
            spool.close()
            raise
        left = outbox.pending
        try:
            outbox.flush()
        finally:
            outbox.close()
        if left:
            sent[outbox.writer] = left
    return sent


class BeatWriter:
    """Puts beats under the name of ``writer``, which may be the one of a FactWriter."""

    def __init__(self, store: Store, writer: WriterName) -> None:
        self._store = store
        self._writer = writer
        self._next_n = 0

    def put(self, beat: Beat) -> None:
        """Number and put ``beat``; its writer and number are overwritten. One PUT.

        Raises TransientError where the store gives no news: that beat is given up, since
        the next one says all that it said.
        """
        numbered = replace(beat, writer=self._writer, n=self._next_n)
        self._next_n += 1
        key = BeatKey(stamp_ms=self._store.clock_ms(), writer=self._writer, n=numbered.n)
        self._store.put_once(key.format(), encode(numbered))


def put_blob(store: Store, data: bytes) -> str:
    """Put ``data`` under its own hash; the sha256 in hex. One PUT, freely repeated.

    Raises RequestError above ``BLOB_MAX_BYTES``: what is larger is cut into pieces.
    """
    if len(data) > BLOB_MAX_BYTES:
        raise RequestError(
            f"{len(data)} bytes are too large for one object: at most {BLOB_MAX_BYTES}"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    store.put_once(blob_key(sha256), data)
    return sha256


def _fact_key(fact: AnyFact, stamp_ms: int) -> str:
    return FactKey(stamp_ms=stamp_ms, writer=fact.writer, n=fact.n, kind=kind_of(fact)).format()


def _check_size(fact: AnyFact) -> None:
    """Refuse a body that will be too large once it names its predecessor."""
    longest_prev = FactKey(stamp_ms=0, writer=fact.writer, n=fact.n, kind="x" * 32)
    size = len(encode(replace(fact, prev=longest_prev.format())))
    if size > FACT_MAX_BYTES:
        raise RequestError(
            f"this {kind_of(fact)} takes {size} bytes of the {FACT_MAX_BYTES} that a fact may "
            "have: shorten it (a long command or environment belongs into the script)"
        )
