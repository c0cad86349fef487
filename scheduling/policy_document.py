"""The text of a policy file as plain values, and the line on which each stands.

Owns the two languages, TOML and YAML, and what of them is refused: a key given twice, and of
YAML anchors, tags and several documents. Numbers with a fraction become ``Decimal``, so that
0.1 is a tenth. What the keys mean is ``scheduling.policy_file``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from ledger.errors import RequestError

Path = tuple[str | int, ...]
"""Keys, and places in lists from 0, from the outside inwards."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Document(NamedTuple):
    """One file. ``line_of`` says where a path begins; None where that is unknown."""

    source: str
    data: Any
    line_of: Callable[[Path], int | None]

    def fault(self, path: Path, expected: str) -> RequestError:
        """The error that ``path`` is not what was expected there."""
        line = self.line_of(path)
        where = f"{self.source}:{line}" if line is not None else self.source
        return RequestError(f"{where}: {f'{dotted(path)}: ' if path else ''}expected {expected}")


class _NotReadError(Exception):
    """The text is not of the language; ``line`` is the first one that shows it."""

    def __init__(self, language: str, reason: str, line: int | None) -> None:
        self.language, self.reason, self.line = language, reason, line
        super().__init__(reason)

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}, "
        return f"{place}not {self.language}: {self.reason}"


def read_document(text: str, source: str) -> Document:
    """``text`` as TOML or YAML, by the suffix of ``source``; without one, as what it is.

    Raises RequestError, one line, where it is neither.
    """
    text = text.removeprefix("\ufeff")
    suffix = source.rpartition(".")[2].lower()
    reads = {"toml": [_read_toml], "yaml": [_read_yaml], "yml": [_read_yaml]}.get(
        suffix, [_read_toml, _read_yaml]
    )
    faults = []
    for read in reads:
        try:
            return read(text, source)
        except _NotReadError as fault:
            faults.append(fault)
        except RecursionError:
            raise RequestError(f"{source}: tables or lists are nested too deeply") from None
    if len(faults) == 1:
        line = f":{faults[0].line}" if faults[0].line is not None else ""
        raise RequestError(f"{source}{line}: not {faults[0].language}: {faults[0].reason}")
    raise RequestError(f"{source}: " + "; ".join(map(str, faults)))


def dotted(path: Path) -> str:
    """``pools.h100.allow[2]``: a path as people write it; places in lists count from 1."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            name = part if _BARE.fullmatch(part) else repr(part)
            text += f".{name}" if text else name
    return text


# --- TOML


def _read_toml(text: str, source: str) -> Document:
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise _toml_fault(text, str(error)) from error
    return Document(source, data, _TomlLines(text).line_of)


def _toml_fault(text: str, message: str) -> _NotReadError:
    place = _TOML_PLACE.search(message)
    reason = message[: place.start()] if place else message
    lines = text.rstrip("\n").split("\n")
    line = int(place[1]) if place and place[1] else len(lines)
    # tomllib names the line after the one that it read to its end.
    while line > 1 and (line > len(lines) or not lines[line - 1].strip()):
        line -= 1
    reason = reason[:1].lower() + reason[1:]
    return _NotReadError("TOML", f"{reason}: {lines[line - 1].strip()[:60]!r}", line)


class _TomlLines:
    """Finds lines in a text that tomllib accepts, though tomllib gives no positions.

    A key stands in the first statement with which the text, cut behind it, has the key.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def line_of(self, path: Path) -> int | None:
        """O(log n) readings of the text."""
        if not path:
            return None
        low, high = 0, len(self._lines)
        while high - low > 1:
            middle = (low + high) // 2
            if _has(self._read_until(middle)[1], path):
                high = middle
            else:
                low = middle
        return self._read_until(high - 1)[0] + 1

    def _read_until(self, count: int) -> tuple[int, Any]:
        """How many of the first ``count`` lines end with a whole statement, and their data."""
        for end in range(count, 0, -1):
            try:
                text = "\n".join(self._lines[:end]) + "\n"
                return end, tomllib.loads(text, parse_float=Decimal)
            except tomllib.TOMLDecodeError:
                continue
        return 0, {}


def _has(data: Any, path: Path) -> bool:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


# --- YAML


def _read_yaml(text: str, source: str) -> Document:
    import yaml

    try:
        _refuse_what_hides(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = str(error.problem or error.context)
        if "'\\t'" in reason:
            reason += "; indent with spaces"
        raise _NotReadError("YAML", reason, mark.line + 1 if mark else None) from error
    except yaml.reader.ReaderError as error:
        raise _NotReadError(
            "YAML", f"a character that may not stand there: {error.reason}", None
        ) from error
    lines: dict[Path, int] = {}
    data = {} if root is None else _Values(source, lines).value((), root)
    return Document(source, data, lines.get)


def _refuse_what_hides(text: str) -> None:
    """Refuse anchors, aliases and tags: what is agreed must stand where it is read."""
    import yaml

    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            reason = f"anchors and aliases are not read: write {anchor!r} out"
            raise _NotReadError("YAML", reason, line)
        if tag is not None:
            raise _NotReadError("YAML", f"tags are not read: leave {tag!r} out", line)


class _Values:
    """Plain values of the nodes of one file; notes where each stands."""

    def __init__(self, source: str, lines: dict[Path, int]) -> None:
        self._source = source
        self._lines = lines

    def value(self, path: Path, node: Any) -> Any:
        import yaml

        self._lines.setdefault(path, node.start_mark.line + 1)
        match node:
            case yaml.MappingNode():
                return self._table(path, node)
            case yaml.SequenceNode():
                return [self.value((*path, i), each) for i, each in enumerate(node.value)]
        return _scalar(node.tag.rpartition(":")[2], node.value)

    def _table(self, path: Path, node: Any) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node.value, str):
                line = key_node.start_mark.line + 1
                raise _NotReadError("YAML", "a key must be a word", line)
            key = key_node.value
            own, line = (*path, key), key_node.start_mark.line + 1
            if key in table:
                raise RequestError(
                    f"{self._source}:{line}: {dotted(own)}: expected once; "
                    f"it stands on line {self._lines[own]} already"
                )
            self._lines[own] = line
            table[key] = self.value(own, value_node)
        return table


def _scalar(tag: str, text: str) -> Any:
    """YAML has octal, sexagesimal and other numbers; those stay text and are no number here."""
    match tag:
        case "bool":
            return text.lower() in ("true", "yes", "on")
        case "null":
            return None
        case "int" | "float" if _NUMBER.fullmatch(text):
            return Decimal(text) if "." in text else int(text)
    return text
