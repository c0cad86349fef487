"""The journal as this machine last folded it, so that the next command need not fold it again.

Owns ``view`` in the ledger's local folder, in the encoding of a checkpoint, and ``store``
beside it, the address under which that ledger was read. Commands that
show or ask for something read it; roles, which decide, read the bucket alone. It is only a
cache: what cannot be read, is of another ledger, is older than a checkpoint or does not
agree with its page is passed over, and what cannot be written is not. Neither is an error.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from ledger.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from ledger.events import SCHEMA
from ledger.journal import Journal
from ledger.keys import CHECKPOINTS, page_key, parse_checkpoint_key
from ledger.state import RULES, State
from ledger.stores.base import Store

KEPT_AFTER_PAGES = 16
"""The view is written anew when so many pages had to be read: writing costs O(state)."""


def load_journal(store: Store, ledger: str, path: Path) -> Journal:
    """Fold the journal from the view kept at ``path`` or from the newest checkpoint.

    Beyond the pages since then: one LIST and one GET from the view; one LIST and two GETs
    from a checkpoint. Keeps the view where many pages were read.
    """
    journal = Journal(store, ledger)
    pages = journal.load(saved=_find_saved(store, ledger, path))
    if len(pages) >= KEPT_AFTER_PAGES:
        _keep(path, journal.projection.state, store.url)
    return journal


def find_kept_state(state_dir: Path, url: str) -> State | None:
    """What is kept of the ledger at ``url``, however old it is; no request."""
    for note in state_dir.glob("*/store"):
        try:
            is_meant = note.read_text() == url
        except OSError:
            continue
        if is_meant:
            saved = _read(note.with_name("view"))
            return saved.state if saved is not None else None
    return None


def _find_saved(store: Store, ledger: str, path: Path) -> State | None:
    """The state at ``path`` where it is of this journal and no checkpoint is newer."""
    saved = _read(path)
    if saved is None or saved.state.ledger != ledger or saved.seq < _newest_checkpoint(store):
        return None
    page = store.get(page_key(saved.seq))
    if page is None or hashlib.sha256(page).hexdigest() != saved.page_sha256:
        return None
    return saved.state


def _read(path: Path) -> Checkpoint | None:
    try:
        saved = decode_checkpoint(path.read_bytes())
    except OSError:
        return None
    is_ours = saved is not None and (saved.v, saved.rules) == (SCHEMA, RULES)
    return saved if is_ours else None


def _newest_checkpoint(store: Store) -> int:
    """After which page the newest checkpoint was taken; -1 where there is none."""
    for entry in store.list(CHECKPOINTS):
        try:
            return parse_checkpoint_key(entry.key)
        except ValueError:  # a stray object is no checkpoint
            continue
    return -1


def _keep(path: Path, state: State, url: str) -> None:
    """Replace the view; for this user's eyes only, as a job's variables stand in it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(fresh, "wb", opener=_private) as file:
            file.write(encode_checkpoint(state))
        fresh.replace(path)
        path.with_name("store").write_text(url)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
