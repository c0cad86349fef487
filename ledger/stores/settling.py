"""The two puts, built of one raw conditional create and one raw read.

Owns the settlement of doubt, which is the same for every store: an answer can be lost
after the write landed, so a refusal or a silence proves nothing by itself, and only the
body that stands at the key does (docs/ARCHITECTURE.md, "The store contract").

Equal bytes do not prove that a write was one's own; the ``put_id`` in them does. A missing
key after a time-out is not final either: the write may still land, which is why the same
bytes are put again rather than given up.
"""

from __future__ import annotations

import enum
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from ledger.clock import Clock
from ledger.errors import InDoubtError, LedgerError, TransientError
from ledger.stores.base import Entry, Lost, Store, Won
from ledger.stores.naming import check_key
from ledger.stores.pacing import Backoff, RequestCounts

NEWS_PATIENCE_MS = 10_000
"""How long an operation waits out a silent or throttling store before TransientError."""

T = TypeVar("T")


class Sender(enum.Enum):
    """On whose behalf a create is sent; it decides how long an answer is awaited."""

    DECIDING = "deciding"
    """``put_new``: soon in doubt, and then settled by reading."""
    PATIENT = "patient"
    """``put_once``: large bodies, and a repeat changes nothing."""
    PROBING = "probing"
    """The probe: from many connections at a time, and a late answer is still a verdict."""


class NotSentError(TransientError):
    """No news, and the request never left this machine: nothing is in doubt."""


class _Identified(msgspec.Struct):
    put_id: str


_DECODER = msgspec.json.Decoder(_Identified)


def find_put_id(body: bytes) -> str | None:
    """The ``put_id`` of a JSON body, or None where it carries none."""
    try:
        return _DECODER.decode(body).put_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class SettlingStore(Store):
    """A store that settles its own doubts; subclasses create, read and list raw.

    ``create_raw``, ``list_raw`` and ``versioning`` are for the probe alone, which must see
    a server's own answers: settlement would hide one that ignores the condition.
    """

    def __init__(self, *, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._counts = RequestCounts()

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far by kind: PUT, GET, LIST (every attempt on the wire counts)."""
        return self._counts.by_kind

    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        """See ``Store.put_new``. Raises ValueError where ``body`` carries no put_id.

        ``patience_ms`` is looked at between requests, so one request's time-out can pass
        on top of it. While no request could even be sent, nothing is in doubt and the call
        raises TransientError after ``NEWS_PATIENCE_MS`` at the latest.
        """
        check_key(key)
        own = find_put_id(body)
        if own is None:
            raise ValueError(f"the body for {key} carries no put_id")
        settling = Backoff(self._clock, self._rng, patience_ms)
        reaching_ms = NEWS_PATIENCE_MS if patience_ms is None else patience_ms
        reaching = Backoff(self._clock, self._rng, min(reaching_ms, NEWS_PATIENCE_MS))
        sent = False
        while True:
            try:
                if self._create(key, body, Sender.DECIDING):
                    return Won()
                sent = True
                doubt = TransientError(f"{key} is refused as existing, yet it reads as missing")
            except TransientError as error:
                sent = sent or not isinstance(error, NotSentError)
                doubt = error
            if sent:
                try:
                    outcome = self._find_outcome(key, own)
                except TransientError as error:
                    outcome, doubt = None, error
                if outcome is not None:
                    return outcome
            if not (settling if sent else reaching).wait():
                if not sent:
                    raise doubt
                raise InDoubtError(f"whether {key} was written is not known: {doubt}") from doubt

    def put_once(self, key: str, body: bytes) -> None:
        check_key(key)

        def create_or_compare() -> None:
            if self._create(key, body, Sender.PATIENT):
                return
            standing = self._read(key)
            if standing is None:
                raise TransientError(f"{key} is refused as existing, yet it reads as missing")
            if standing != body:
                raise LedgerError(
                    f"{key} stands in {self.url} with another body ({len(standing)} bytes, "
                    f"ours {len(body)}): two processes use one name, or the object was changed"
                )

        self._await_news(create_or_compare)

    def get(self, key: str) -> bytes | None:
        check_key(key)
        return self._await_news(lambda: self._read(key))

    def create_raw(self, key: str, body: bytes) -> bool:
        """One conditional create and the server's own answer: True created, False refused.

        Raises TransientError for everything else, 409 included (it asks for another try).
        """
        return self._create(check_key(key), body, Sender.PROBING)

    @abstractmethod
    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        """``list`` in pages of at most ``page_keys``, in whatever order the server gives."""

    @abstractmethod
    def versioning(self) -> bool | None:
        """Whether old versions of objects are kept; None where that cannot be learnt."""

    @abstractmethod
    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        """Create unless it exists: True created, False it exists already.

        Raises NotSentError, TransientError (the write may stand) or RequestError.
        """

    @abstractmethod
    def _read(self, key: str) -> bytes | None:
        """The bytes at ``key`` or None. Raises TransientError, RequestError."""

    def _find_outcome(self, key: str, own: str) -> Won | Lost | None:
        """What the body at ``key`` proves; None where there is none (yet)."""
        standing = self._read(key)
        if standing is None:
            return None
        # Who acts on this outcome must find it again after a power cut.
        self.sync(key)
        return Won() if find_put_id(standing) == own else Lost(standing)

    def _await_news(self, ask: Callable[[], T]) -> T:
        """``ask()``, again and again while there is no news, for ``NEWS_PATIENCE_MS``."""
        backoff = Backoff(self._clock, self._rng, NEWS_PATIENCE_MS)
        while True:
            try:
                return ask()
            except TransientError:
                if not backoff.wait():
                    raise
