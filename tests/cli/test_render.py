"""Odd names, columns, times."""

from __future__ import annotations

import pytest

from gpuq.render import (
    iso_utc,
    long_duration,
    plain_table,
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


def test_a_terminal_gets_one_line_a_row_and_names_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("NAME", "STATE"), [("[/x]", "RUNNING"), ("n" * 300, "[red]"), (":rocket:", "x")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "[/x]" in lines[1]
    assert "[red]" in lines[2]
    assert ":rocket:" in lines[3]


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
