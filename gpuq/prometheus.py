"""The text format of Prometheus, version 0.0.4.

Owns the escaping and the layout: of each family its HELP and TYPE, then its samples. All
are gauges. Nothing here knows what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

PREFIX = "gpuq_"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    labels: Mapping[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` without the prefix."""

    name: str
    help: str
    samples: tuple[Sample, ...]


def exposition(families: Iterable[Family]) -> str:
    """All families that have samples, each line ended by a line feed."""
    lines = []
    for family in families:
        if family.samples:
            name = PREFIX + family.name
            lines.append(f"# HELP {name} {_escaped(family.help)}")
            lines.append(f"# TYPE {name} gauge")
            lines.extend(f"{name}{_labels(s.labels)} {s.value!r}" for s in family.samples)
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    quote = '"'
    parts = (
        f'{name}="{_escaped(value).replace(quote, chr(92) + quote)}"'
        for name, value in labels.items()
    )
    return "{" + ",".join(parts) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
