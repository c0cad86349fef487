"""Sizes of memory and amounts of money as text.

Owns the forms that the command line, policy files and the reasons of decisions share. Money is
counted in millionths of its unit, whatever that is.
"""

from __future__ import annotations

import re
from decimal import Decimal

GIB = 1 << 30
MICROS = 1_000_000

_SIZE = re.compile(r"([0-9]{1,9})([KMGT])(i?)B?", re.IGNORECASE)
_UNITS = "KMGT"


def parse_bytes(text: str) -> int | None:
    """Bytes of ``40G``, ``40GB`` (powers of 1000) or ``40GiB`` (powers of 1024); None else.

    ``G`` is decimal because a card that is sold with 24 GB has somewhat less than 24 GiB.
    """
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        return None
    unit = 1024 if match[3] else 1000
    for _ in _UNITS[: _UNITS.index(match[2].upper())]:
        unit *= 1024 if match[3] else 1000
    return int(match[1]) * unit


def format_bytes(size_bytes: int) -> str:
    """The shortest text that ``parse_bytes`` reads as this, of a size that it has read."""
    forms = [
        (size_bytes // base**power, f"{unit}{suffix}")
        for base, suffix in ((1000, ""), (1024, "iB"))
        for power, unit in enumerate(_UNITS, start=1)
        if size_bytes % base**power == 0
    ]
    number, unit = min(forms)
    return f"{number}{unit}"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3g} GiB"


def to_micros(money: int | Decimal) -> int | None:
    """Millionths of an amount; None where it is not a whole number of them."""
    exact = Decimal(money) * MICROS
    return int(exact) if exact.is_finite() and exact == int(exact) else None


def gpu_seconds(gpu_ms: int) -> str:
    """Whole seconds, rounded up, as nothing is free."""
    return str(-(-gpu_ms // 1_000))


def money(micros: int) -> str:
    """``12`` or ``0.0025``, exactly."""
    whole, rest = divmod(micros, MICROS)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")
