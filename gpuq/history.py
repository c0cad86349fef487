"""The pages of a ledger from some time on, for commands that look back.

Owns where such a reading begins: at the newest checkpoint that is older than what is asked
for, so that not the whole journal has to be folded. Reads only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from gpuq.parse import parse_duration
from ledger.checkpoint import decode_checkpoint
from ledger.errors import RequestError
from ledger.events import Page
from ledger.journal import BATCH_MAX, decode_journal_page
from ledger.keys import CHECKPOINTS, checkpoint_key, page_key, parse_checkpoint_key
from ledger.names import Seq
from ledger.state import State
from ledger.stores.base import Store


def state_before(store: Store, ledger: str, at_ms: int) -> State:
    """The state of the newest usable checkpoint before ``at_ms``, else that before page 0.

    One LIST, and GETs in the logarithm of the checkpoints.
    """
    seqs = sorted(_checkpoints(store))
    low, high = 0, len(seqs)
    while low < high:
        middle = (low + high) // 2
        if _is_before(store, seqs[middle], at_ms):
            low = middle + 1
        else:
            high = middle
    for seq in reversed(seqs[:low]):
        state = _saved(store, ledger, seq)
        if state is not None:
            return state
    return State(ledger=ledger)


def pages_after(store: Store, seq: int, until_ms: int | None = None) -> Iterator[tuple[Page, str]]:
    """Each page after ``seq`` with its hash, up to the last that was posted by ``until_ms``."""
    while True:
        keys = [page_key(Seq(seq + 1 + i)) for i in range(BATCH_MAX)]
        for key, body in zip(keys, store.get_many(keys), strict=True):
            if body is None:
                return
            page = decode_journal_page(body, key)
            if until_ms is not None and page.at > until_ms:
                return
            yield page, hashlib.sha256(body).hexdigest()
        seq += BATCH_MAX


def parse_moment(text: str, now_ms: int) -> int:
    """When that was (ms since the epoch): so long ago, or a local time.

    Raises RequestError on anything else, and on what is still to come.
    """
    try:
        at_ms = int(datetime.fromisoformat(text.strip()).timestamp() * 1_000)
    except (ValueError, OverflowError):
        try:
            at_ms = now_ms - parse_duration(text)
        except RequestError:
            raise RequestError(
                f"{text!r} is no time: say 2h (ago), or a time such as 2026-12-01T18:00"
            ) from None
    if at_ms > now_ms:
        raise RequestError(f"{text!r} is still to come")
    return at_ms


def _checkpoints(store: Store) -> Iterator[Seq]:
    for entry in store.list(CHECKPOINTS):
        with suppress(ValueError):  # a stray object is no checkpoint
            yield parse_checkpoint_key(entry.key)


def _is_before(store: Store, seq: Seq, at_ms: int) -> bool:
    body = store.get(page_key(seq))
    return body is not None and decode_journal_page(body, page_key(seq)).at < at_ms


def _saved(store: Store, ledger: str, seq: Seq) -> State | None:
    """The state after page ``seq``, where its checkpoint agrees with that page."""
    body, page = store.get(checkpoint_key(seq)), store.get(page_key(seq))
    saved = decode_checkpoint(body) if body is not None else None
    if saved is None or page is None or saved.state.ledger != ledger:
        return None
    is_sound = saved.page_sha256 == hashlib.sha256(page).hexdigest()
    return saved.state if is_sound else None
