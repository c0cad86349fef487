"""How far a long reading of the journal is: one line on a terminal, wiped at the end.

Owns when it is shown: on a terminal only, and only once a person begins to wonder. How many
pages there are is known roughly, from the newest checkpoint.
"""

from __future__ import annotations

import sys
from types import TracebackType

from ledger.clock import Clock
from ledger.keys import CHECKPOINTS, parse_checkpoint_key
from ledger.stores.base import Store

PATIENCE_MS = 2_000
"""A reading that takes no longer shows no progress."""

REDRAW_MS = 200
_BAR_CELLS = 30


class Progress:
    """A context: call ``show`` as often as you like."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._is_shown = sys.stderr.isatty()
        self._next_ms = clock.boot_ms() + PATIENCE_MS
        self._drawn = False
        self._pages = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")

    def show(self, pages: int, doing: str) -> None:
        """So many pages are done."""
        if not self._is_shown or self._clock.boot_ms() < self._next_ms:
            return
        if not self._drawn:
            self._pages = _pages_about(self._store)
        self._next_ms = self._clock.boot_ms() + REDRAW_MS
        self._drawn = True
        sys.stderr.write(f"\r{bar(pages, self._pages)}{pages} pages {doing}")
        sys.stderr.flush()


def bar(done: int, total: int) -> str:
    """``[#####.....] ``, full from ``total`` on; empty where the total is not known."""
    if not total:
        return ""
    cells = min(_BAR_CELLS, _BAR_CELLS * done // total)
    return f"[{'#' * cells}{'.' * (_BAR_CELLS - cells)}] "


def _pages_about(store: Store) -> int:
    """After how many pages the newest checkpoint was taken; 0 without one. One LIST."""
    for entry in store.list(CHECKPOINTS):
        try:
            return parse_checkpoint_key(entry.key) + 1
        except ValueError:  # a stray object is no checkpoint
            continue
    return 0
