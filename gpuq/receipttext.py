"""A receipt for people: what was asked for, each attempt, and every event with its object."""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import Any

import msgspec

from gpuq.billtext import amount
from gpuq.job import snapshot_lines
from gpuq.receipt import Attempt, Receipt
from gpuq.render import Cut, iso_utc, print_table, printable, short_duration

_LABEL_CELLS = 15
_DETAIL_MAX_CHARACTERS = 60

_EVENT_CUTS = (Cut("DETAILS", 20), Cut("DETAILS", 0))


def show_receipt(receipt: Receipt, *, has_price: bool) -> None:
    """Times are UTC, because a receipt is read elsewhere too."""
    spec = receipt.story.spec
    assert spec is not None
    lines = _lines(receipt.facts(), snapshot_lines(spec), has_price=has_price)
    for name, value in lines:
        print(f"{name + ':':<{_LABEL_CELLS}}{printable(value)}")
    for attempt in receipt.attempts:
        print()
        for name, value in _attempt_lines(attempt, has_price=has_price):
            print(f"{name + ':':<{_LABEL_CELLS}}{printable(value)}")
    print()
    rows = [
        [iso_utc(event.at), event.event, event.key, _details(event.details)]
        for event in receipt.events()
    ]
    print_table(["TIME", "EVENT", "OBJECT", "DETAILS"], rows, _EVENT_CUTS)


def _lines(
    facts: dict[str, Any], snapshot: list[tuple[str, str]], *, has_price: bool
) -> list[tuple[str, str]]:
    script, command = facts["script_sha256"], shlex.join(facts["command"])
    missing = "" if facts["script_bytes"] is not None else " (not in the store)"
    lines = [
        ("id", facts["id"]),
        ("name", facts["name"]),
        ("flow", f"{facts['organization']}/{facts['class']}/{facts['pool']}"),
        ("submitted by", facts["user"]),
        ("state", facts["state"] or "-"),
        ("script", f"sha256 {script}{missing}" if script else ""),
        ("arguments" if script else "command", command),
        ("long words", f"sha256 {facts['words_sha256']}" if facts["words_sha256"] else ""),
        ("fingerprint", facts["command_fingerprint"]),
        ("directory", "" if snapshot else facts["directory"]),
        *snapshot,
        ("variables", ", ".join(facts["variables"])),
        ("secrets", ", ".join(facts["secrets"])),
        ("slot time", short_duration(facts["occupied_slot_ms"])),
        ("money", amount(Fraction(facts["money_micros"])) if has_price else ""),
    ]
    return [(name, value) for name, value in lines if value]


def _attempt_lines(attempt: Attempt, *, has_price: bool) -> list[tuple[str, str]]:
    ended = "" if attempt.ended_at is None else iso_utc(attempt.ended_at)
    if attempt.became == "running":
        ended = f"runs still, at {ended}"
    log, manifest = attempt.log_sha256, attempt.artifacts_sha256
    files = f"{attempt.artifacts_files} files, {attempt.artifacts_bytes} bytes"
    lines = [
        ("attempt", str(attempt.attempt)),
        ("workers", ", ".join(attempt.workers)),
        ("GPUs", ", ".join(gpu for gpu in attempt.gpus if gpu not in attempt.workers)),
        ("assigned", iso_utc(attempt.assigned_at)),
        ("claimed", _claim(attempt)),
        ("started", "never" if attempt.started_at is None else iso_utc(attempt.started_at)),
        ("ended", ended),
        ("became", attempt.became or ""),
        ("rc", "" if attempt.rc is None else str(attempt.rc)),
        ("reason", attempt.reason),
        ("slot time", short_duration(attempt.occupied_slot_ms) if attempt.became else ""),
        ("money", amount(Fraction(attempt.money_micros)) if has_price and attempt.became else ""),
        ("log", f"{attempt.log_key}, {attempt.log_bytes} bytes, sha256 {log}" if log else ""),
        ("files", f"{attempt.artifacts_key}, {files}, sha256 {manifest}" if manifest else ""),
    ]
    return [(name, value) for name, value in lines if value]


def _claim(attempt: Attempt) -> str:
    if attempt.claimed_at is None:
        return ""
    machine = f" on machine {attempt.claim_machine}" if attempt.claim_machine else ""
    return (
        f"{iso_utc(attempt.claimed_at)} as {attempt.claim_owner} by {attempt.claim_writer}{machine}"
    )


def _details(details: dict[str, Any]) -> str:
    """``name=value`` pairs, each cut to what a table bears; the JSON has all."""
    return " ".join(f"{name}={_short(value)}" for name, value in details.items())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _DETAIL_MAX_CHARACTERS:
        text = f"{text[:_DETAIL_MAX_CHARACTERS]}..."
    return shlex.quote(text) if " " in text else text
