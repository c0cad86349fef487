"""What a ledger holds beside what it should hold."""

from __future__ import annotations

from typing import Any

import msgspec

from ledger.names import Seq


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """``recorded`` is what stands at ``key``, ``derived`` what should, as JSON values.

    ``page`` is the page that says so; None where no page tells of the object.
    """

    page: Seq | None
    key: str
    field: str
    recorded: Any
    derived: Any


def plain(value: Any) -> Any:
    """``value`` as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))
