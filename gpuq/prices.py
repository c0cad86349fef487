"""What nodes cost: a file of prices, which stands above what nodes say of themselves.

Owns the grammar of the file. Money is counted in millionths of its unit, whatever that is.
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from gpuq.render import printable
from ledger.errors import RequestError
from ledger.names import NodeName

PRICE_MAX = 1_000_000
MICROS = 1_000_000

_PRICE = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?")
_FORM = "a price is a number such as 2.5, at most six decimals and 1000000, for a node and hour"


class Prices(msgspec.Struct, frozen=True):
    """Pairs of pattern and millionths an hour; the first pattern that matches counts."""

    nodes: tuple[tuple[str, int], ...] = ()

    def of(self, node: NodeName, told_micros: int) -> int:
        """The price of a node, which itself said ``told_micros``."""
        for pattern, micros in self.nodes:
            if fnmatchcase(node, pattern):
                return micros
        return told_micros


def parse_price(text: str) -> int:
    """``2.5`` in millionths. Raises RequestError on anything else."""
    if not _PRICE.fullmatch(text.strip()) or Decimal(text) > PRICE_MAX:
        raise RequestError(f"{text!r} is no price: {_FORM}")
    return int(Decimal(text) * MICROS)


def read_prices(path: str | None) -> Prices:
    """The prices of a file; none without a file."""
    if path is None:
        return Prices()
    try:
        content = tomllib.loads(Path(path).read_text(), parse_float=Decimal)
    except OSError as error:
        raise RequestError(f"cannot read {printable(path)}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{printable(path)} is not TOML: {error}") from error
    unknown = content.keys() - {"nodes"}
    nodes = content.get("nodes")
    if unknown or not isinstance(nodes, dict):
        raise RequestError(
            f"{printable(path)} needs one table [nodes], with lines such as '\"node1\" = 2.5'"
        )
    return Prices(tuple((name, _micros(path, name, value)) for name, value in nodes.items()))


def _micros(path: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise RequestError(f"{printable(path)}: {printable(name)!r} has no price: {_FORM}")
    try:
        return parse_price(format(value, "f") if isinstance(value, Decimal) else str(value))
    except RequestError as error:
        raise RequestError(f"{printable(path)}: {printable(name)!r}: {error}") from error
