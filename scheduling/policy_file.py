"""Policy files: TOML text to a ``Policy`` and back.

Owns the file's grammar and its error messages: each names the line, the key, what was
expected there and, for a key that does not exist, the nearest one that does. For now a
file says the weights of organizations and, for pools, their roster and discipline::

    [organizations.astro]
    weight = 4

    [pools.h100]
    workers = ["node1", "node2-gpu*"]
    discipline = "wfq"

``parse_policy(format_policy(policy)) == policy``. Pure: text in, value out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from ledger.errors import RequestError
from ledger.names import NAME
from ledger.policy import DISCIPLINES, WEIGHT_ONE, Organization, Policy, Pool

WEIGHT_MAX = 1_000_000

_PATTERN = re.compile(r"[a-z0-9*?\[\]!-]{1,80}")

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse_policy(text: str, *, source: str) -> Policy:
    """The policy that ``text`` says; ``source`` is its name in messages.

    Raises RequestError, one line, at the first fault.
    """
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{source}: {error}") from error
    return _Reader(text, source).policy(data)


def format_policy(policy: Policy) -> str:
    """The file that says ``policy``."""
    tables = [
        f"[organizations.{name}]\nweight = {_weight_text(organization.weight)}\n"
        for name, organization in policy.organizations.items()
    ]
    for name, pool in policy.pools.items():
        workers = ", ".join(f'"{pattern}"' for pattern in pool.workers)
        tables.append(f'[pools.{name}]\nworkers = [{workers}]\ndiscipline = "{pool.discipline}"\n')
    return "\n".join(tables)


def _weight_text(weight: int) -> str:
    whole, thousandths = divmod(weight, WEIGHT_ONE)
    return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")


class _Reader:
    """Checks one file from the outside inwards; knows where a key stands in the text."""

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source

    def policy(self, data: Mapping[str, Any]) -> Policy:
        self._check_keys((), data, ("organizations", "pools"))
        return Policy(
            organizations={
                name: self._organization(("organizations", name), value)
                for name, value in self._named("organizations", data)
            },
            pools={
                name: self._pool(("pools", name), value)
                for name, value in self._named("pools", data)
            },
        )

    def _named(self, kind: str, data: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        """The tables of one kind, their names checked."""
        tables = self._table((kind,), data.get(kind, {}))
        for name in tables:
            if not NAME.fullmatch(name):
                raise self._fault((kind, name), "a name of 1 to 63 characters of a-z, 0-9 and '-'")
        return tables.items()

    def _organization(self, path: tuple[str, ...], value: Any) -> Organization:
        table = self._table(path, value)
        self._check_keys(path, table, ("weight",))
        if "weight" not in table:
            raise self._fault(path, "a 'weight'")
        return Organization(weight=self._weight((*path, "weight"), table["weight"]))

    def _weight(self, path: tuple[str, ...], value: Any) -> int:
        expected = f"a number from 0.001 to {WEIGHT_MAX} with at most three decimals"
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise self._fault(path, expected)
        exact = Decimal(value) * WEIGHT_ONE
        if not exact.is_finite() or not 1 <= exact <= WEIGHT_MAX * WEIGHT_ONE or exact % 1:
            raise self._fault(path, expected)
        return int(exact)

    def _pool(self, path: tuple[str, ...], value: Any) -> Pool:
        table = self._table(path, value)
        self._check_keys(path, table, ("workers", "discipline"))
        discipline = table.get("discipline", "wfq")
        if discipline not in DISCIPLINES:
            raise self._fault((*path, "discipline"), f"one of {', '.join(DISCIPLINES)}")
        workers = table.get("workers", [])
        if not isinstance(workers, list) or not all(
            isinstance(pattern, str) and _PATTERN.fullmatch(pattern) for pattern in workers
        ):
            expected = 'a list of names of workers or nodes, or patterns such as "node1-*"'
            raise self._fault((*path, "workers"), expected)
        return Pool(workers=tuple(workers), discipline=discipline)

    def _table(self, path: tuple[str, ...], value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._fault(path, f"a table: [{_dotted(path)}{'.NAME' * (len(path) == 1)}]")
        return value

    def _check_keys(
        self, path: tuple[str, ...], table: Mapping[str, Any], known: tuple[str, ...]
    ) -> None:
        for key in table:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise self._fault((*path, key), f"one of {', '.join(known)}{hint}")

    def _fault(self, path: tuple[str, ...], expected: str) -> RequestError:
        line = self._find_line(path)
        where = f"{self._source}:{line}" if line is not None else self._source
        return RequestError(f"{where}: {_dotted(path)}: expected {expected}")

    def _find_line(self, path: tuple[str, ...]) -> int | None:
        """The line on which the key at ``path`` is first named; None where that is unclear.

        tomllib gives no positions, so this looks for the last part of the path after the
        lines on which the parts before it stand.
        """
        at = 0
        for part in path:
            name = re.compile(
                rf"""(?<![A-Za-z0-9_-])["']?{re.escape(part)}["']?(?![A-Za-z0-9_-])"""
            )
            found = next(
                (n for n in range(at, len(self._lines)) if name.search(self._lines[n])), None
            )
            if found is None:
                return None
            at = found
        return at + 1


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(part if _BARE.fullmatch(part) else repr(part) for part in path)
