"""A bill as a table for people, as CSV, as Markdown and as JSON.

Owns the columns and their names. People see durations and money with two decimals; CSV and
JSON hold integers: slot-milliseconds, and millionths of the unit of money. Money is left out
where nobody said a price.
"""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from typing import Any

from gpuq.prices import MICROS
from gpuq.render import printable, short_duration, times
from ledger.bill import Bill, Key, Sum
from ledger.usage import Became

IDLE = "(idle)"
TOTAL = "total"
_TITLES = ("JOBS", "ATTEMPTS", "OCCUPIED", *(became.upper() for became in Became), "ASKED", "IDLE")


def has_money(made: Bill) -> bool:
    return bool(made.total.money or made.total.idle_money)


def micros(money: Fraction) -> int:
    """Millionths, rounded half to even."""
    return round(money)


def amount(money: Fraction) -> str:
    """``12.35``: what a person is shown."""
    cents = round(money * 100 / MICROS)
    return f"{cents // 100}.{cents % 100:02d}"


# -- for people


def table(made: Bill) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the groups, the idle time by what of the groups it can have, the total."""
    header = [*(name.upper() for name in made.by), *_TITLES]
    rows = [[*key, *_cells(of_group), ""] for key, of_group in made.used.items()]
    money = [amount(of_group.money) for of_group in made.used.values()]
    for key, of_group in made.idle.items():
        idle = short_duration(of_group.idle_slot_ms)
        rows.append([*_named(key, IDLE), *[""] * (len(_TITLES) - 1), idle])
        money.append(amount(of_group.idle_money))
    idle = short_duration(made.total.idle_slot_ms)
    rows.append([*_named(tuple("" for _ in made.by), TOTAL), *_cells(made.total), idle])
    money.append(amount(made.total.money + made.total.idle_money))
    if has_money(made):
        header.append("MONEY")
        rows = [[*row, text] for row, text in zip(rows, money, strict=True)]
    return header, rows


def markdown_text(made: Bill) -> str:
    """The same table in Markdown."""
    header, rows = table(made)
    names = len(made.by)
    rule = ["---"] * names + ["---:"] * (len(header) - names)
    return "".join(
        f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in [header, rule, *rows]
    )


def _named(key: Key, name: str) -> list[str]:
    """What a line that is no job's is called, in the first column that it leaves empty."""
    cells = list(key)
    place = cells.index("") if "" in cells else 0
    cells[place] = f"{cells[place]} {name}".strip()
    return cells


def _cells(of_group: Sum) -> list[str]:
    return [
        str(of_group.jobs),
        str(len(of_group.attempts)),
        short_duration(of_group.occupied_slot_ms),
        *(short_duration(of_group.slot_ms[became]) for became in Became),
        short_duration(of_group.asked_slot_ms),
    ]


# -- for programs


def csv_text(made: Bill) -> str:
    """One line a group and one for each group of idle time; ``line`` says which."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    groups = [
        *(_row("used", key, made, _used(of_group)) for key, of_group in made.used.items()),
        *(_row("idle", key, made, _idle(of_group)) for key, of_group in made.idle.items()),
    ]
    header = ["line", *made.by, *_used(Sum()), "idle_slot_ms"]
    writer.writerow(header)
    writer.writerows([[row.get(name, "") for name in header] for row in groups])
    return file.getvalue()


def bill_json(made: Bill) -> dict[str, Any]:
    return {
        **times(**{"from": made.begin, "to": made.end}),
        "by": list(made.by),
        "rows": [{**_of(key, made), **_used(group)} for key, group in made.used.items()],
        "idle": [{**_of(key, made), **_idle(group)} for key, group in made.idle.items()],
        "total": {
            **_used(made.total),
            "idle_slot_ms": made.total.idle_slot_ms,
            "idle_money_micros": micros(made.total.idle_money),
        },
    }


def _row(line: str, key: Key, made: Bill, columns: dict[str, int]) -> dict[str, Any]:
    return {"line": line, **_of(key, made), **columns}


def _of(key: Key, made: Bill) -> dict[str, str | None]:
    """What the group is of; null where an idle slot has nothing of the kind."""
    return {name: value or None for name, value in zip(made.by, key, strict=True)}


def _used(of_group: Sum) -> dict[str, int]:
    return {
        "jobs": of_group.jobs,
        "attempts": len(of_group.attempts),
        "occupied_slot_ms": of_group.occupied_slot_ms,
        **{f"{became.value}_slot_ms": of_group.slot_ms[became] for became in Became},
        "asked_slot_ms": of_group.asked_slot_ms,
        "money_micros": micros(of_group.money),
    }


def _idle(of_group: Sum) -> dict[str, int]:
    return {
        "idle_slot_ms": of_group.idle_slot_ms,
        "money_micros": micros(of_group.idle_money),
    }
