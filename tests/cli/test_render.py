"""Odd names, columns, times."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpuq.render import (
    Cut,
    cell_width,
    iso_utc,
    long_duration,
    plain_table,
    print_clauses,
    print_table,
    printable,
    short_duration,
    size,
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("train", "train"),
        ("[/x]", "[/x]"),
        ("[red]", "[red]"),
        ("größe", "größe"),
        ("🚀", "🚀"),
        ("a\nb", "a\\nb"),
        ("a\tb\r", "a\\tb\\r"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202edesrever", "\\u202edesrever"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\udcff"),
        ("\x00", "\\x00"),
    ],
)
def test_a_name_is_shown_on_one_line_and_moves_no_cursor(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_columns_align_by_cells_also_beside_wide_characters() -> None:
    table = plain_table(("A", "B"), [("ab", "1"), ("🚀", "2"), ("", "3"), ("日本", "4")])
    assert table.splitlines() == ["A     B", "ab    1", "🚀    2", "-     3", "日本  4"]


def test_a_long_name_is_whole_in_a_pipe_and_widens_no_other_row() -> None:
    long = "x" * 300
    table = plain_table(("NAME", "STATE"), [(long, "RUNNING"), ("y", "PENDING")])
    assert table.splitlines()[1] == f"{long}  RUNNING"
    assert table.splitlines()[2] == "y" + " " * 39 + "  PENDING"


HEADER = ("ID", "NAME", "POOL", "STATE", "WHY")
CUTS = (Cut("NAME", 4), Cut("POOL", 0), Cut("WHY", 6))


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """What a terminal of that width shows, without its colours."""

    def lines(width: int, show: Callable[..., None], *args: object) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        show(*args)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return lines


Terminal = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (80, "abcdefgh  a long name  default  RUNNING  node1-cpu0"),
        (50, "abcdefgh  a long na…  default  RUNNING  node1-cpu0"),
        (45, "abcdefgh  a lo…  default  RUNNING  node1-cpu0"),
        (44, "abcdefgh  a l…  default  RUNNING  node1-cpu0"),
        (43, "abcdefgh  a l…  RUNNING  node1-cpu0"),
        (33, "abcdefgh  a l…  RUNNING  node1-c…"),
        (20, "abcdefgh  a l…  RUNNING  node1…"),
    ],
)
def test_a_narrow_terminal_cuts_what_may_be_cut_in_order_and_never_an_id(
    terminal: Terminal, width: int, row: str
) -> None:
    rows = [("abcdefgh", "a long name", "default", "RUNNING", "node1-cpu0")]
    assert terminal(width, print_table, HEADER, rows, CUTS)[1] == row


def test_a_terminal_gets_one_line_a_row_and_names_are_no_markup(terminal: Terminal) -> None:
    rows = [
        ("a", "[/x]", "p", "RUNNING", ""),
        ("b", "n" * 300, "p", "[red]", ""),
        ("c", ":rocket:", "p", "x", "日本" * 40),
    ]
    lines = terminal(60, print_table, HEADER, rows, (Cut("NAME", 8), Cut("WHY", 6)))
    assert len(lines) == 4
    assert all(cell_width(line) <= 60 for line in lines)
    assert "[/x]" in lines[1]
    assert "[red]" in lines[2]
    assert ":rocket:" in lines[3]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (17, ["one, two; three;", "four"]),
        (23, ["one, two; three; four"]),
        (5, ["one, two;", "three;", "four"]),
    ],
)
def test_a_line_of_clauses_breaks_between_them(
    terminal: Terminal, width: int, lines: list[str]
) -> None:
    assert terminal(width, print_clauses, ["one, two", "three", "four"]) == lines


def test_in_a_pipe_clauses_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_clauses(["x" * 100, "y" * 100])
    assert capsys.readouterr().out == "x" * 100 + "; " + "y" * 100 + "\n"


@pytest.mark.parametrize(
    ("duration_ms", "short", "long"),
    [
        (0, "0.0s", "0 s"),
        (450, "0.4s", "0 s"),
        (9_999, "9.9s", "9 s"),
        (59_999, "59s", "59 s"),
        (192_000, "3m12s", "3 min 12 s"),
        (5_400_000, "1h30m", "1 h 30 min"),
        (183_600_000, "2d03h", "2 d 3 h"),
    ],
)
def test_durations(duration_ms: int, short: str, long: str) -> None:
    assert (short_duration(duration_ms), long_duration(duration_ms)) == (short, long)


def test_sizes_have_three_digits() -> None:
    assert [size(n) for n in (0, 1023, 1024, 85_520_809_984, 1010 * 1024)] == [
        "0 B", "1023 B", "1 KiB", "79.6 GiB", "1010 KiB",
    ]  # fmt: skip


def test_json_times_are_utc() -> None:
    assert iso_utc(1_796_058_793_123) == "2026-11-30T17:13:13.123Z"
