"""The names of all objects in the bucket: formatting and strict parsing.

Owns docs/LEDGER_FORMAT.md's table of keys. ``parse(format(key)) == key`` for every key,
and a name that is not exactly what ``format`` would give is refused with ValueError, so
that a stray object can never be taken for part of the ledger.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

from ledger.names import JobId, Seq, WorkerName, WriterName

LEDGER = "gpuq.json"
FACTS = "facts/"
BEATS = "beats/"
JOURNAL = "journal/"
MAILBOX = "mailbox/"
CLAIMS = "claims/"
BLOBS = "blobs/"
LOGS = "logs/"
CHECKPOINTS = "checkpoints/"
ARTIFACTS = "artifacts/"
NOTICES = "notices/"
PROBE = "probe/"

_SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,254}"
PATH = re.compile(rf"(?=.{{1,900}}\Z){_SEGMENT}(?:/{_SEGMENT})*")
"""A key of any object of a store, also of one that the ledger does not write."""

MESSAGES_MAX = 100_000_000
"""A mailbox holds fewer messages than this: their numbers have eight digits."""

_TOP_SEQ = 999_999_999_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(
    r"([1-9][0-9]{3})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{3})Z"
)
_WRITER = r"[a-z0-9-]{1,80}~[a-z2-7]{8}"
_NUMBER = r"0|[1-9][0-9]*"
_TIME = r"([1-9][0-9]{7}T[0-9]{2})/([1-9][0-9]{7}T[0-9]{9}Z)"
_FACT = re.compile(rf"facts/{_TIME}\.({_WRITER})\.({_NUMBER})\.([a-z_]{{1,32}})")
_BEAT = re.compile(rf"beats/{_TIME}\.({_WRITER})\.({_NUMBER})")
_ATTEMPT = rf"([a-z2-7]{{8}}(?:_(?:{_NUMBER}))?)\.({_NUMBER})"
_CLAIM = re.compile(rf"claims/{_ATTEMPT}")
_ARTIFACT = re.compile(rf"artifacts/{_ATTEMPT}")
_PIECE = re.compile(rf"logs/{_ATTEMPT}/([0-9]{{6}})")
_MESSAGE = re.compile(r"mailbox/([a-z0-9-]{1,80})/([0-9]{8})")
_PAGE = re.compile(r"journal/([0-9]{12})")
_CHECKPOINT = re.compile(r"checkpoints/([0-9]{12})")


def format_stamp(at_ms: int) -> str:
    """``20261130T171300123Z`` for milliseconds since the epoch, UTC."""
    t = _EPOCH + timedelta(milliseconds=at_ms)
    day = f"{t.year:04d}{t.month:02d}{t.day:02d}"  # strftime would take five times as long
    return f"{day}T{t.hour:02d}{t.minute:02d}{t.second:02d}{at_ms % 1000:03d}Z"


def parse_stamp(stamp: str) -> int:
    """Milliseconds since the epoch. Raises ValueError on anything but a stamp."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise ValueError(f"not a stamp: {stamp!r}")
    year, month, day, hour, minute, second, millisecond = map(int, match.groups())
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1) + millisecond


class FactKey(msgspec.Struct, frozen=True, kw_only=True):
    """``facts/<hour>/<stamp>.<writer>.<n>.<kind>``; ``(writer, n)`` is the identity."""

    stamp_ms: int
    writer: WriterName
    n: int
    kind: str

    def format(self) -> str:
        stamp = format_stamp(self.stamp_ms)
        return f"facts/{stamp[:11]}/{stamp}.{self.writer}.{self.n}.{self.kind}"

    @staticmethod
    def parse(key: str) -> FactKey:
        hour, stamp, writer, n, kind = _groups(_FACT, key, "fact")
        if not stamp.startswith(hour):
            raise ValueError(f"fact in the wrong hour: {key!r}")
        return FactKey(stamp_ms=parse_stamp(stamp), writer=WriterName(writer), n=int(n), kind=kind)


class BeatKey(msgspec.Struct, frozen=True, kw_only=True):
    """``beats/<hour>/<stamp>.<writer>.<n>``."""

    stamp_ms: int
    writer: WriterName
    n: int

    def format(self) -> str:
        stamp = format_stamp(self.stamp_ms)
        return f"beats/{stamp[:11]}/{stamp}.{self.writer}.{self.n}"

    @staticmethod
    def parse(key: str) -> BeatKey:
        hour, stamp, writer, n = _groups(_BEAT, key, "beat")
        if not stamp.startswith(hour):
            raise ValueError(f"beat in the wrong hour: {key!r}")
        return BeatKey(stamp_ms=parse_stamp(stamp), writer=WriterName(writer), n=int(n))


def after_stamp(prefix: str, at_ms: int) -> str:
    """The ``start_after`` that makes a LIST of facts or beats begin at ``at_ms``."""
    stamp = format_stamp(max(0, at_ms))
    return f"{prefix}{stamp[:11]}/{stamp}"


def page_key(seq: int) -> str:
    return f"journal/{_padded(seq, 12)}"


def parse_page_key(key: str) -> Seq:
    return Seq(int(_groups(_PAGE, key, "page")[0]))


def message_key(worker: str, n: int) -> str:
    return f"mailbox/{worker}/{_padded(n, 8)}"


def parse_message_key(key: str) -> tuple[WorkerName, int]:
    worker, n = _groups(_MESSAGE, key, "message")
    return WorkerName(worker), int(n)


def attempt_name(job: str, attempt: int) -> str:
    """``<job>.<attempt>``, as it stands in keys of claims and logs."""
    return f"{job}.{attempt}"


def claim_key(job: str, attempt: int) -> str:
    return f"claims/{job}.{attempt}"


def parse_claim_key(key: str) -> tuple[JobId, int]:
    job, attempt = _groups(_CLAIM, key, "claim")
    return JobId(job), int(attempt)


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256}"


def log_piece_key(job: str, attempt: int, n: int) -> str:
    return f"logs/{job}.{attempt}/{_padded(n, 6)}"


def parse_log_piece_key(key: str) -> tuple[JobId, int, int]:
    job, attempt, n = _groups(_PIECE, key, "log piece")
    return JobId(job), int(attempt), int(n)


def log_key(job: str, attempt: int) -> str:
    """The whole log; its last line is ``rc=N``."""
    return f"logs/{job}.{attempt}.log"


def artifact_key(job: str, attempt: int) -> str:
    return f"artifacts/{job}.{attempt}"


def parse_artifact_key(key: str) -> tuple[JobId, int]:
    job, attempt = _groups(_ARTIFACT, key, "artifacts' manifest")
    return JobId(job), int(attempt)


def notice_key(job: str, ended_at_ms: int) -> str:
    """That an end was told to whom the job named; it may end, and be told, again."""
    return f"notices/{job}.{format_stamp(ended_at_ms)}"


def checkpoint_key(seq: int) -> str:
    """Newest first in byte order, so that a LIST of one key finds it."""
    return f"checkpoints/{_padded(_TOP_SEQ - seq, 12)}"


def parse_checkpoint_key(key: str) -> Seq:
    return Seq(_TOP_SEQ - int(_groups(_CHECKPOINT, key, "checkpoint")[0]))


def _padded(number: int, width: int) -> str:
    text = f"{number:0{width}d}"
    if number < 0 or len(text) > width:
        raise ValueError(f"{number} does not fit {width} digits")
    return text


def _groups(pattern: re.Pattern[str], key: str, what: str) -> tuple[str, ...]:
    match = pattern.fullmatch(key)
    if match is None:
        raise ValueError(f"not the key of a {what}: {key!r}")
    return match.groups()
