"""How things look: escaped text, columns, times and sizes for people, JSON for programs.

Owns the difference between a terminal (colour, cut to its width) and a pipe (plain columns
that are neither coloured, wrapped nor cut). Nothing that a user named is ever read as
markup or as control characters. stdout carries data, stderr carries talk.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ledger.timings import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that move the cursor or reorder what stands beside them."""

_JOINER = "\u200d"
"""Holds the parts of one emoji together."""

_PADDED_MAX_CELLS = 40
"""In a pipe a longer cell sticks out of its column instead of widening it."""

_STYLES = {
    "RUNNING": "green",
    "ASSIGNED": "green",
    "STOPPING": "yellow",
    "HELD": "yellow",
    "CANCELLED": "yellow",
    "COMPLETED": "dim",
    "FAILED": "red",
    "TIMEOUT": "red",
    "OUT_OF_MEMORY": "red",
    "NODE_FAIL": "red",
    "REJECTED": "red",
    "EXPIRED": "red",
    "DEPENDENCY_NEVER": "red",
}


def printable(text: str) -> str:
    """``text`` on one line: control, direction and surrogate characters are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in _HIDDEN and c != _JOINER else c for c in text
    )


def cell_width(text: str) -> int:
    """How many cells of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, aligned by cell width; one line a row, nothing cut."""
    lines = [list(header), *([printable(cell) or "-" for cell in row] for row in rows)]
    widths = [
        max(min(cell_width(line[column]), _PADDED_MAX_CELLS) for line in lines)
        for column in range(len(header))
    ]
    return "\n".join(
        "  ".join(
            cell + " " * max(0, width - cell_width(cell))
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


class Cut(NamedTuple):
    """One step of making a table narrower: a column loses what is beyond ``cells``.

    With 0 cells the column is left out.
    """

    column: str
    cells: int


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], cuts: Sequence[Cut] = ()
) -> None:
    """On a terminal coloured and made as narrow as it is by ``cuts``, else ``plain_table``.

    The cuts are made in their order, none deeper than needed. What no cut names is whole.
    """
    if sys.stdout.isatty():
        _print_on_terminal(header, rows, cuts)
    else:
        print(plain_table(header, rows))


def _print_on_terminal(
    header: Sequence[str], rows: Sequence[Sequence[str]], cuts: Sequence[Cut]
) -> None:
    from rich.console import Console
    from rich.text import Text

    width = _terminal_width()
    console = Console(highlight=False, emoji=False, width=width)
    lines = [list(header), *([printable(cell) or "-" for cell in row] for row in rows)]
    natural = [max(map(cell_width, column)) for column in zip(*lines, strict=True)]
    widths = fitted(header, natural, cuts, width)
    for number, line in enumerate(lines):
        text = Text()
        for title, cell, width in zip(header, line, widths, strict=True):
            if width:
                style = _STYLES.get(cell, "") if number and title == "STATE" else ""
                part = Text(cell, style if number else "bold")
                part.truncate(width, overflow="ellipsis", pad=True)
                text += part + Text("  ")
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ignore", crop=False)


def fitted(
    header: Sequence[str], natural: Sequence[int], cuts: Sequence[Cut], total: int
) -> list[int]:
    """Widths of columns, two cells apart, that fit ``total`` cells as far as ``cuts`` go."""
    widths = list(natural)
    for cut in cuts:
        excess = sum(width + 2 for width in widths if width) - 2 - total
        if excess <= 0:
            break
        place = header.index(cut.column)
        if not cut.cells:
            widths[place] = 0
        elif widths[place] > cut.cells:
            widths[place] = max(cut.cells, widths[place] - excess)
    return widths


def print_clauses(clauses: Sequence[str]) -> None:
    """One line; on a terminal that is too narrow for it, broken between clauses."""
    width = _terminal_width() if sys.stdout.isatty() else None
    line = ""
    for number, clause in enumerate(map(printable, clauses)):
        piece = clause + (";" if number < len(clauses) - 1 else "")
        if line and width is not None and cell_width(line) + 1 + cell_width(piece) > width:
            print(line)
            line = ""
        line = f"{line} {piece}" if line else piece
    print(line)


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns


def epilog(*examples: str) -> str:
    """The last lines of a command's help; click leaves alone what begins with a backspace."""
    title = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {example}" for example in examples)])


def say(text: str) -> None:
    """One line of talk, on stderr."""
    print(printable(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on stdout, its keys in the order given."""
    body = msgspec.json.format(msgspec.json.encode(value), indent=2)
    print(body.decode())


def times(**moments_ms: int | None) -> Mapping[str, str | int | None]:
    """For JSON: ``x=ms`` becomes ``x`` (ISO 8601, UTC) and ``x_ms`` (since the epoch)."""
    fields: dict[str, str | int | None] = {}
    for name, at_ms in moments_ms.items():
        fields[name] = None if at_ms is None else iso_utc(at_ms)
        fields[f"{name}_ms"] = at_ms
    return fields


def iso_utc(at_ms: int) -> str:
    """``2026-11-30T17:13:00.123Z``."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def local_time(at_ms: int, now_ms: int) -> str:
    """This machine's time of day; with the date where it is another day than now's."""
    moment = datetime.fromtimestamp(at_ms / 1000)
    is_today = moment.date() == datetime.fromtimestamp(now_ms / 1000).date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M}"


def short_duration(duration_ms: int) -> str:
    """``0.4s``, ``12s``, ``3m12s``, ``1h05m``, ``2d03h``; cut, never rounded up."""
    duration_ms = max(0, duration_ms)
    if duration_ms < 10 * SECOND_MS:
        return f"{duration_ms // 1000}.{duration_ms % 1000 // 100}s"
    if duration_ms < MINUTE_MS:
        return f"{duration_ms // SECOND_MS}s"
    if duration_ms < HOUR_MS:
        return f"{duration_ms // MINUTE_MS}m{duration_ms % MINUTE_MS // SECOND_MS:02d}s"
    if duration_ms < DAY_MS:
        return f"{duration_ms // HOUR_MS}h{duration_ms % HOUR_MS // MINUTE_MS:02d}m"
    return f"{duration_ms // DAY_MS}d{duration_ms % DAY_MS // HOUR_MS:02d}h"


def long_duration(duration_ms: int) -> str:
    """``1 h 30 min``: how a time limit was read, nothing left out."""
    parts = []
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s")):
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def size(size_bytes: int) -> str:
    """``79.6 GiB``: three digits in the unit that fits."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
