"""One table of a policy file while it is read: its keys taken one by one, checked.

Owns what values look like in a file (weights, counts, times, patterns) and the messages for
those that do not. A key may have synonyms; a key that nobody took is refused at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from ledger.errors import RequestError
from ledger.names import NAME
from ledger.policy import WEIGHT_ONE
from ledger.timings import SECOND_MS
from scheduling.duration import DURATION_MAX_MS, parse_units
from scheduling.policy_document import Document, Path
from scheduling.quantities import MICROS, parse_bytes, to_micros

WEIGHT_MAX = 1_000_000
COUNT_MAX = 1_000_000_000
MONEY_MAX = 1_000_000_000

NAME_FORM = "a name of 1 to 63 characters of a-z, 0-9 and '-'"
TEXT_MAX_CHARACTERS = 200

T = TypeVar("T")

_NAME_PATTERN = re.compile(r"[a-z0-9*?\[\]!-]{1,80}")
_PERCENT = re.compile(r"([1-9][0-9]{0,2})%")


class Value(NamedTuple):
    """What stands at one place of the file. The methods return it as what it should be."""

    document: Document
    path: Path
    plain: Any

    def fault(self, expected: str, hint: str = "") -> RequestError:
        """The error that something else was expected here, with what is here."""
        return self.document.fault(self.path, f"{expected}, not {_shown(self.plain)}{hint}")

    def clash(self, reason: str) -> RequestError:
        """The error that this does not agree with what stands elsewhere."""
        return self.document.fault(self.path, reason)

    def table(self, form: str = "a table") -> Table:
        if not isinstance(self.plain, dict):
            raise self.fault(form)
        return Table(self)

    def entries(self, form: str = "a list") -> list[Value]:
        if not isinstance(self.plain, list):
            raise self.fault(form)
        return [
            Value(self.document, (*self.path, place), each) for place, each in enumerate(self.plain)
        ]

    def text(self) -> str:
        """A text of one line for people."""
        if isinstance(self.plain, str) and _is_line(self.plain):
            return self.plain
        raise self.fault(f"a text of 1 to {TEXT_MAX_CHARACTERS} characters on one line")

    def one_of(self, known: Iterable[str]) -> str:
        words = tuple(known)
        if isinstance(self.plain, str) and self.plain in words:
            return self.plain
        raise self.fault(f"one of {', '.join(words)}", nearest(self.plain, words))

    def flag(self) -> bool:
        if isinstance(self.plain, bool):
            return self.plain
        raise self.fault("true or false")

    def count(self, least: int = 1, most: int = COUNT_MAX) -> int:
        """A whole number. A limit of 0 would read as "none may" and mean "no limit"."""
        plain = self.plain
        if isinstance(plain, int) and not isinstance(plain, bool) and least <= plain <= most:
            return plain
        hint = "; leave it out for no limit" if plain == 0 and plain is not False else ""
        raise self.fault(f"a whole number from {least} to {most}", hint)

    def weight(self) -> int:
        """In thousandths."""
        plain = self.plain
        if isinstance(plain, int | Decimal) and not isinstance(plain, bool):
            exact = Decimal(plain) * WEIGHT_ONE
            in_range = exact.is_finite() and 1 <= exact <= WEIGHT_MAX * WEIGHT_ONE
            if in_range and not exact % 1:
                return int(exact)
        raise self.fault(f"a number from 0.001 to {WEIGHT_MAX} with at most three decimals")

    def duration_ms(self) -> int:
        found = parse_units(self.plain.strip()) if isinstance(self.plain, str) else None
        if found is None or not 0 < found <= DURATION_MAX_MS:
            raise self.fault("a time such as 90s, 10m, 2h or 1d")
        return found

    def seconds_ms(self) -> int:
        """A whole number of seconds, in milliseconds."""
        return self.count(1, DURATION_MAX_MS // SECOND_MS) * SECOND_MS

    def size_bytes(self) -> int:
        """An amount of memory, in bytes."""
        found = parse_bytes(self.plain) if isinstance(self.plain, str) else None
        if found is None:
            raise self.fault("a size such as 40G, 40GB or 40GiB")
        return found

    def money_micros(self) -> int:
        """An amount of money, in millionths of its unit."""
        plain = self.plain
        if isinstance(plain, int | Decimal) and not isinstance(plain, bool):
            micros = to_micros(plain)
            if micros is not None and 1 <= micros <= MONEY_MAX * MICROS:
                return micros
        raise self.fault(f"a number from 0.000001 to {MONEY_MAX} with at most six decimals")

    def slots(self) -> tuple[int, int]:
        """A number of slots and a share of the pool in percent; 0 for what is not said."""
        form = 'a number of slots, a share of the pool such as "50%", or a list of both'
        number = percent = 0
        for each in self.entries() if isinstance(self.plain, list) else [self]:
            share = _PERCENT.fullmatch(each.plain) if isinstance(each.plain, str) else None
            if share and int(share[1]) <= 100 and not percent:
                percent = int(share[1])
            elif not isinstance(each.plain, str) and not number:
                number = each.count()
            else:
                raise each.fault(form)
        if not number and not percent:
            raise self.fault(form)
        return number, percent

    def name_patterns(self) -> tuple[str, ...]:
        """Names of nodes, workers, organizations or pools, or patterns of them."""
        form = 'a list of names, or patterns such as "node1-*"'
        return self._texts(form, lambda text: _NAME_PATTERN.fullmatch(text) is not None)

    def submitter_patterns(self) -> tuple[str, ...]:
        form = 'a list of submitters such as "ada", "ada@laptop" or "*@laptop"'
        return self._texts(form, lambda text: _is_line(text) and " " not in text)

    def text_patterns(self) -> tuple[str, ...]:
        return self._texts('a list of names of jobs, or patterns such as "nightly-*"', _is_line)

    def _texts(self, form: str, is_one: Callable[[str], bool]) -> tuple[str, ...]:
        for each in self.entries(form):
            if not isinstance(each.plain, str) or not is_one(each.plain):
                raise each.fault(form)
        return tuple(self.plain)


class Table:
    """Reads a table of the file key by key; ``close`` refuses the keys that nobody took."""

    def __init__(self, value: Value) -> None:
        self._value = value
        self._entries: dict[str, Any] = value.plain
        self._known: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def at(self, key: str) -> Value:
        """What stands at ``key``, or the place where it would stand."""
        value = self._value
        return Value(value.document, (*value.path, key), self._entries.get(key))

    def find(self, *synonyms: str) -> Value | None:
        """What stands under one of these keys. Raises RequestError where it is said twice."""
        self._known |= dict.fromkeys(synonyms)
        found = [key for key in synonyms if key in self._entries]
        if len(found) > 1:
            raise self.at(found[1]).clash(f"either {found[0]!r} or {found[1]!r}: they are the same")
        return self.at(found[0]) if found else None

    def get(self, default: T, read: Callable[[Value], T], *synonyms: str) -> T:
        """What ``read`` makes of the value under one of these keys, else ``default``."""
        found = self.find(*synonyms)
        return default if found is None else read(found)

    def inner(self, *synonyms: str) -> Table:
        """The table under that key; an empty one where there is none."""
        found = self.find(*synonyms)
        if found is None:
            return Table(Value(self._value.document, (*self._value.path, synonyms[0]), {}))
        return found.table()

    def named(self, known: tuple[str, ...] | None = None) -> list[tuple[str, Value]]:
        """All entries, each key a name, and one of ``known`` where that is given."""
        for key in self._entries:
            if known is not None and key not in known:
                raise self.at(key).clash(f"one of {', '.join(known)}{nearest(key, known)}")
            if not NAME.fullmatch(key):
                raise self.at(key).clash(NAME_FORM)
        return self.items()

    def items(self) -> list[tuple[str, Value]]:
        return [(key, self.at(key)) for key in self._entries]

    def missing(self, expected: str) -> RequestError:
        """The error that the table as a whole lacks something."""
        return self._value.clash(expected)

    def close(self) -> None:
        """Raises RequestError for the first key that was not asked for."""
        for key in self._entries:
            if key not in self._known:
                known = tuple(self._known)
                raise self.at(key).clash(f"one of {', '.join(known)}{nearest(key, known)}")


def _is_line(text: str) -> bool:
    return 0 < len(text) <= TEXT_MAX_CHARACTERS and text.isprintable()


def nearest(word: Any, known: tuple[str, ...]) -> str:
    """The end of a message that ``word`` is none of those; empty where none is near."""
    near = get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(plain: Any) -> str:
    """A value of the file in a few words."""
    match plain:
        case None:
            return "nothing"
        case bool():
            return str(plain).lower()
        case dict():
            return "a table"
        case list():
            return "a list"
        case str():
            return repr(plain if len(plain) <= 40 else plain[:40] + "...")
    return str(plain)
