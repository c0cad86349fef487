"""The store probe: does this store really keep the promises that the protocol rests on?

Owns the questions of ``gpuq doctor`` and ``gpuq init`` and their verdicts. A store that
ignores ``If-None-Match``, or lets two racing writers win, would let two dispatchers both
run jobs, so it is refused with the reason. It asks for the server's own answers
(``create_raw``), because a settled put would hide such a store. A time-out or a throttled
request is no verdict. What it leaves behind is ``probe/<id>/...``; nothing is deleted.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ledger import keys
from ledger.clock import Clock
from ledger.errors import RequestError, TransientError
from ledger.names import WriterName, token
from ledger.stores.settling import SettlingStore
from ledger.timings import MINUTE_MS, SECOND_MS

_CONNECTIONS = 32
_BARRIER_TIMEOUT_S = 60
_REQUEST_MS = 5
_SMALL_PAGE_KEYS = 3
_FULL_PAGE_KEYS = 1000
_STAMP_MS = 1_796_058_793_123
"""2026-11-30T17:13:13.123Z; any stamp would do."""
_ALL_BYTES = bytes(range(256)) + bytes(reversed(range(256))) + b"\r\n\n\r\0"


class Verdict(enum.StrEnum):
    OK = "ok"
    FAILED = "failed"
    NO_VERDICT = "no verdict"


class Check(msgspec.Struct, frozen=True):
    """One question, its verdict, and the reason in one line."""

    name: str
    verdict: Verdict
    reason: str


class ProbeReport(msgspec.Struct, frozen=True):
    """All checks of one probe of the store at ``url``, in the order they were made."""

    url: str
    checks: tuple[Check, ...]

    @property
    def refused(self) -> Check | None:
        """The first check that failed: this store must not hold a ledger."""
        return self._find_first(Verdict.FAILED)

    @property
    def undecided(self) -> Check | None:
        """The first check without a verdict: try again."""
        return self._find_first(Verdict.NO_VERDICT)

    def require(self) -> None:
        """Raises RequestError where refused, TransientError where undecided."""
        if (check := self.refused) is not None:
            raise RequestError(
                f"{self.url} cannot hold a ledger: {check.reason}; use another store"
            )
        if (check := self.undecided) is not None:
            raise TransientError(f"{self.url}: no verdict, try again: {check.reason}")

    def _find_first(self, verdict: Verdict) -> Check | None:
        return next((check for check in self.checks if check.verdict is verdict), None)


class _RefusedError(Exception):
    """The store broke a promise; the text says which."""


class _Probe(msgspec.Struct, frozen=True, kw_only=True):
    store: SettlingStore
    clock: Clock
    rng: random.Random
    root: str
    thorough: bool


def probe(
    store: SettlingStore, *, clock: Clock, rng: random.Random, thorough: bool = False
) -> ProbeReport:
    """Ask ``store`` everything: some 220 requests, from one second to about ten.

    ``thorough`` races 16 connections on 50 keys instead of 4 on 20 and lists more than
    1,000 keys (some 2,000 requests). Raises RequestError where the set-up is wrong (no
    such bucket, a missing right), which is not the store's fault.
    """
    asked = _Probe(
        store=store,
        clock=clock,
        rng=rng,
        root=f"{keys.PROBE}{token(rng, 12)}/",
        thorough=thorough,
    )
    questions: tuple[tuple[str, Callable[[_Probe], str]], ...] = (
        ("versioning", _versioning),
        ("create once", _create_once),
        ("one winner", _one_winner),
        ("byte fidelity", _byte_fidelity),
        ("list order", _list_order),
        ("list paging", _list_paging),
        ("clock", _clock),
    )
    return ProbeReport(
        url=store.url, checks=tuple(_check(name, question, asked) for name, question in questions)
    )


def _check(name: str, question: Callable[[_Probe], str], asked: _Probe) -> Check:
    try:
        return Check(name, Verdict.OK, question(asked))
    except _RefusedError as refusal:
        return Check(name, Verdict.FAILED, str(refusal))
    except TransientError as error:
        return Check(name, Verdict.NO_VERDICT, str(error))


def _create_once(asked: _Probe) -> str:
    store, key = asked.store, f"{asked.root}once/first"
    if store.get(key) is not None:
        raise _RefusedError("a key that was never written reads as present")
    first, second = _body(asked.rng, 0), _body(asked.rng, 1)
    if not store.create_raw(key, first) and store.get(key) != first:
        raise _RefusedError("the server refuses to create a new key")
    created_again = store.create_raw(key, second)
    standing = store.get(key)
    if created_again:
        raise _RefusedError(
            "the server ignores If-None-Match: a second create of the same key was accepted"
            + (" and replaced the first" if standing == second else "")
        )
    if standing != first:
        raise _RefusedError("the body of a key changed although its second create was refused")
    return "a second create is refused and changes nothing"


def _one_winner(asked: _Probe) -> str:
    racers, count = (16, 50) if asked.thorough else (4, 20)
    at_once = _CONNECTIONS // racers
    raced = [f"{asked.root}race/{n:04d}" for n in range(count)]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for first in range(0, count, at_once):
            _race(asked, pool, raced[first : first + at_once], racers)
            # The store's request budget would else string out the racers of the next round.
            asked.clock.sleep_ms(at_once * racers * _REQUEST_MS)
    return f"exactly one of {racers} racing creates won, on each of {count} keys"


def _race(asked: _Probe, pool: ThreadPoolExecutor, raced: Sequence[str], racers: int) -> None:
    """Race ``racers`` connections on each key of ``raced``, all of them let go at once."""
    bodies = [_body(asked.rng, n) for n in range(racers)]
    gate = threading.Barrier(len(raced) * racers)

    def run(key: str, body: bytes) -> bool | None:
        gate.wait(_BARRIER_TIMEOUT_S)
        try:
            return asked.store.create_raw(key, body)
        except TransientError:
            return None

    runs = [[pool.submit(run, key, body) for body in bodies] for key in raced]
    for key, key_runs in zip(raced, runs, strict=True):
        answers = [run.result() for run in key_runs]
        _judge(key, dict(zip(bodies, answers, strict=True)), asked.store.get(key))


def _judge(key: str, answers: dict[bytes, bool | None], standing: bytes | None) -> None:
    """One race: ``answers`` by body (True created, False refused, None no news)."""
    winners = [body for body, created in answers.items() if created]
    if len(winners) > 1:
        raise _RefusedError(
            f"{len(winners)} of {len(answers)} creates of one key were accepted at the same time"
        )
    if winners and standing != winners[0]:
        raise _RefusedError("a create was accepted in a race, and its body does not stand there")
    # Without a winner, whoever stands there won: its answer was lost, or a gateway on the
    # way sent it twice and passed on the refusal of the second. `put_new` settles both.
    if standing in answers:
        return
    if None not in answers.values():
        raise _RefusedError(f"all of {len(answers)} racing creates of one key were refused")
    raise TransientError(f"racing creates of {key} had no answer")


def _byte_fidelity(asked: _Probe) -> str:
    key = f"{asked.root}bytes"
    asked.store.put_once(key, _ALL_BYTES)
    if asked.store.get(key) != _ALL_BYTES:
        raise _RefusedError("a body of all 256 byte values does not read as it was written")
    return "all 256 byte values read as written"


def _list_order(asked: _Probe) -> str:
    shapes = [asked.root + key for key in _shapes()]
    for key in shapes:
        asked.store.put_once(key, b"{}")
    for folder in _LISTED:
        prefix = asked.root + folder
        expected = sorted(key for key in shapes if key.startswith(prefix))
        found = _names(asked, prefix)
        if found != expected:
            raise _RefusedError(f"{folder} does not list its keys, or not in byte order")
        for n in {0, len(expected) // 2, len(expected) - 1}:
            if _names(asked, prefix, expected[n]) != expected[n + 1 :]:
                raise _RefusedError(f"start-after in {folder} is not exclusive, or skips keys")
    return f"{len(shapes)} keys of the ledger's shapes list in byte order"


def _list_paging(asked: _Probe) -> str:
    prefix = asked.root + keys.FACTS
    whole = _names(asked, prefix)
    if _names(asked, prefix, page_keys=_SMALL_PAGE_KEYS) != whole:
        raise _RefusedError("a listing in small pages is not the whole listing")
    if not asked.thorough:
        return f"{len(whole)} keys list the same in pages of {_SMALL_PAGE_KEYS}"
    many = [f"{asked.root}many/{n:06d}" for n in range(_FULL_PAGE_KEYS + 1)]
    for key in many:
        asked.store.put_once(key, b"{}")
    if _names(asked, f"{asked.root}many/") != many:
        raise _RefusedError(f"a listing of {len(many)} keys is not whole")
    return f"{len(many)} keys list whole and in order"


def _versioning(asked: _Probe) -> str:
    is_on = asked.store.versioning()
    if is_on is None:
        return "whether the bucket keeps versions cannot be learnt"
    if not is_on:
        return "no versions are kept"
    # Some servers heed the condition only in a bucket without versions.
    key = f"{asked.root}versioned"
    if not asked.store.create_raw(key, b"1") or asked.store.create_raw(key, b"2"):
        raise _RefusedError("the bucket keeps versions, and so this server ignores If-None-Match")
    return "versions are kept, and If-None-Match is heeded all the same"


def _clock(asked: _Probe) -> str:
    ahead_ms = asked.clock.wall_ms() - asked.store.clock_ms()
    if abs(ahead_ms) < MINUTE_MS:
        return "this machine's clock and the store's agree to within a minute"
    direction = "ahead of" if ahead_ms > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_ms) // SECOND_MS} s {direction} the store's: gpuq "
        "goes by the store's, but do set this one (NTP)"
    )


_LISTED = (
    keys.FACTS,
    f"{keys.FACTS}20261130T17/",
    keys.BEATS,
    keys.JOURNAL,
    f"{keys.MAILBOX}node1-gpu1/",
    keys.CLAIMS,
    keys.BLOBS,
    f"{keys.LOGS}a2b3c4d5.1/",
    keys.CHECKPOINTS,
    "segments/",
)
"""The prefixes that the ledger lists. It never lists across, say, two workers' mailboxes."""


def _shapes() -> list[str]:
    """One or more keys of every shape that the ledger writes, those likely to be misplaced."""
    writers = (
        "node1-gpu1~k3f2x2ab",
        "node1-gpu10~k3f2x2ab",
        "node1~k3f2x2ab",
        "dispatcher~a2b3c4d5",
    )
    hours = (_STAMP_MS, _STAMP_MS + 1, _STAMP_MS + 60 * MINUTE_MS)
    stamped = [(stamp_ms, WriterName(writer)) for stamp_ms in hours for writer in writers]
    return [
        *(keys.FactKey(stamp_ms=s, writer=w, n=n, kind="start").format()
          for s, w in stamped for n in (9, 10)),
        *(keys.BeatKey(stamp_ms=s, writer=w, n=0).format() for s, w in stamped),
        *(keys.page_key(seq) for seq in (0, 9, 10, 999_999_999_999)),
        *(keys.message_key(worker, n) for worker in ("node1-gpu1", "node1-gpu10") for n in (0, 10)),
        *(keys.claim_key("a2b3c4d5", attempt) for attempt in (1, 2, 10)),
        *(keys.blob_key(digit * 64) for digit in "0af"),
        *(keys.log_piece_key("a2b3c4d5", attempt, n) for attempt in (1, 10) for n in (0, 10)),
        keys.log_key("a2b3c4d5", 1),
        *(keys.checkpoint_key(seq) for seq in (200, 400)),
        "segments/000000000000-000000000255",
        "segments/000000000256-000000000511",
    ]  # fmt: skip


def _names(
    asked: _Probe, prefix: str, start_after: str = "", *, page_keys: int = _FULL_PAGE_KEYS
) -> Sequence[str]:
    return [entry.key for entry in asked.store.list_raw(prefix, start_after, page_keys)]


def _body(rng: random.Random, n: int) -> bytes:
    return msgspec.json.encode({"put_id": token(rng, 16), "n": n})
