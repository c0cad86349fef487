"""What people type for times, sizes, GPUs and variables, read into integers.

Owns the accepted forms (docs/CLI.md lists them). What cannot be read is a RequestError that
shows the forms; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from ledger.errors import RequestError
from ledger.events import LEAD_SIGNALS
from ledger.names import NodeName, check_name
from ledger.timings import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from ledger.variables import is_reserved, is_variable, looks_secret
from scheduling.duration import DURATION_MAX_MS, parse_units
from scheduling.quantities import parse_bytes

SLOTS_MAX = 1_024
COUNT_MAX = 1_000_000_000
SIGNAL_LEAD_S = 60

_DURATION_FORMS = "say minutes, MM:SS, H:MM:SS, D-H, D-H:MM, D-H:MM:SS, or 90m, 1h30m, 2d"
_N = r"([0-9]{1,9})"
_COLONS = re.compile(rf"{_N}(:{_N}){{0,2}}")
_DAYS = re.compile(rf"{_N}-([0-9:]{{1,30}})")
_GPUS = re.compile(rf"(?:([A-Za-z0-9][A-Za-z0-9 ._-]*):)?{_N}")
_SIGNAL = re.compile(r"(?:B:)?([A-Z0-9]{1,12})(?:@([0-9]{1,6}))?")
_COUNT = re.compile(r"[0-9]{1,10}")
_URL = re.compile(r"https?://[^/\s@]+(/[!-~]*)?")


class Gpus(NamedTuple):
    """How many slots, and a part of the GPU's name (lower case; empty: any)."""

    slots: int
    gpu_type: str


class LeadSignal(NamedTuple):
    """What a job gets before its time limit, and how long before."""

    signal: str
    lead_ms: int


def parse_duration(text: str) -> int:
    """Milliseconds (> 0) of ``text``: Slurm's forms of ``--time``, or numbers with units.

    A bare number is minutes and ``1:30`` is one minute and a half, as Slurm reads them.
    Raises RequestError on anything else.
    """
    duration_ms = _duration_ms(text.strip().lower())
    if duration_ms is None:
        raise RequestError(f"{text!r} is not a time: {_DURATION_FORMS}")
    if not 0 < duration_ms <= DURATION_MAX_MS:
        raise RequestError(
            f"{text!r} is not between 1 second and 10 years; leave it out for no limit"
        )
    return duration_ms


def parse_grace(text: str) -> int:
    """Milliseconds between TERM and KILL, as ``parse_duration`` reads them; ``0`` is at once.

    At least one, because none is how the ledger says that nothing was asked for.
    """
    return 1 if text.strip().lower() in ("0", "0s") else parse_duration(text)


def parse_deadline(text: str, now_ms: int) -> int:
    """When that is (ms since the epoch): so long from now, or a local time such as
    ``2026-12-01T18:00``.

    Raises RequestError on anything else, and on what has passed.
    """
    return _moment_ahead(text, now_ms, "deadline", _duration_ms)


def parse_begin(text: str, now_ms: int) -> int:
    """The same of a time before which a job does not begin.

    A duration needs its unit: ``16:00`` is a time of day for Slurm, and 16 minutes here.
    """
    return _moment_ahead(text, now_ms, "begin", parse_units)


def _moment_ahead(
    text: str, now_ms: int, what: str, read_duration: Callable[[str], int | None]
) -> int:
    try:
        at_ms = int(datetime.fromisoformat(text.strip()).timestamp() * 1_000)
    except (ValueError, OverflowError):
        duration_ms = read_duration(text.strip().lower())
        if duration_ms is None:
            raise RequestError(
                f"{text!r} is no {what}: say 2h (from now), or a time such as 2026-12-01T18:00"
            ) from None
        at_ms = now_ms + duration_ms
    if not now_ms < at_ms <= now_ms + DURATION_MAX_MS:
        raise RequestError(f"the {what} {text!r} has passed, or lies beyond ten years")
    return at_ms


def _duration_ms(text: str) -> int | None:
    if (match := _DAYS.fullmatch(text)) is not None and _COLONS.fullmatch(match[2]):
        hours, minutes, seconds = (*_numbers(match[2]), 0, 0)[:3]
        if hours > 23:
            return None
        return _sum_ms(int(match[1]), hours, minutes, seconds)
    if _COLONS.fullmatch(text):
        match _numbers(text):
            case [minutes]:
                return minutes * MINUTE_MS
            case [minutes, seconds] if seconds < 60:
                return minutes * MINUTE_MS + seconds * SECOND_MS
            case [hours, minutes, seconds]:
                return _sum_ms(0, hours, minutes, seconds)
        return None
    return parse_units(text)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(":")]


def _sum_ms(days: int, hours: int, minutes: int, seconds: int) -> int | None:
    if minutes > 59 or seconds > 59:
        return None
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS


def parse_size(text: str) -> int:
    """Bytes of ``40G``, ``40GB`` or ``40GiB``. Raises RequestError on anything else."""
    size_bytes = parse_bytes(text.strip())
    if size_bytes is None:
        raise RequestError(f"{text!r} is not a size: say 40G, 40GB or 40GiB")
    return size_bytes


def parse_gpus(text: str) -> Gpus:
    """``2`` or ``h100:2``. Raises RequestError on anything else, and on 0."""
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{text!r} is not a number of GPUs: say N or TYPE:N, such as h100:2")
    slots = int(match[2])
    if not 1 <= slots <= SLOTS_MAX:
        raise RequestError(f"{text!r}: a job takes 1 to {SLOTS_MAX} slots of one node")
    return Gpus(slots, (match[1] or "").lower())


def parse_nodes(texts: Iterable[str]) -> tuple[NodeName, ...]:
    """Names of nodes with commas, sorted, each once. Raises RequestError on anything else."""
    names = {name.strip() for text in texts for name in text.split(",")}
    return tuple(NodeName(check_name("node", name)) for name in sorted(names))


def parse_signal(text: str) -> LeadSignal:
    """``USR1@120``, as Slurm's ``--signal``: a signal and how many seconds before the limit.

    The signal is a name with or without ``SIG``, or its number on Linux; without ``@`` it
    comes a minute before. ``B:`` may stand before it: the script gets it in any case.
    Raises RequestError on anything else.
    """
    match = _SIGNAL.fullmatch(text.strip().upper())
    if match is None:
        raise RequestError(f"{text!r} is not a signal: say NAME@SECONDS, such as USR1@120")
    names = {str(number): name for name, number in LEAD_SIGNALS.items()}
    name = names.get(match[1], match[1].removeprefix("SIG"))
    if name not in LEAD_SIGNALS:
        raise RequestError(f"no signal {match[1]!r}; signals are {', '.join(LEAD_SIGNALS)}")
    lead_s = SIGNAL_LEAD_S if match[2] is None else int(match[2])
    if lead_s == 0:
        raise RequestError(f"{text!r}: at the time limit itself TERM is sent anyway")
    return LeadSignal(name, lead_s * SECOND_MS)


def parse_count(text: str, *, most: int = COUNT_MAX) -> int:
    """A whole number from 0 to ``most``. Raises RequestError on anything else."""
    number = int(text) if _COUNT.fullmatch(text.strip()) else -1
    if not 0 <= number <= most:
        raise RequestError(f"{text!r} is not a whole number from 0 to {most}")
    return number


def parse_url(text: str) -> str:
    """The address of a web server. Raises RequestError on anything else."""
    if not _URL.fullmatch(text):
        raise RequestError(
            f"{text!r} is no URL: say https://HOST/PATH (for a command: gpuq wait JOB; COMMAND)"
        )
    return text


def parse_variable(text: str) -> tuple[str, str | None]:
    """Name and value of ``NAME=VALUE``; of ``NAME`` the value is None.

    Raises RequestError for what is no variable, for names that gpuq sets itself, and for a
    value that looks like a secret by its name.
    """
    name, equals, value = text.partition("=")
    _check_variable("--env", name)
    if looks_secret(name):
        raise RequestError(
            f"--env {name} looks like a secret, and what is in a ledger stays there: say --secret "
            f"{name}, and the node's operator puts its value into a file there"
        )
    if "\0" in value:
        raise RequestError(f"the value of --env {name} has a NUL byte, which no variable can hold")
    return name, value if equals else None


def parse_secret(text: str) -> str:
    """The name of a variable whose value the node holds. Raises RequestError on anything else."""
    name, equals, _ = text.partition("=")
    if equals:
        raise RequestError(f"--secret {name} takes no value: the node's operator has it")
    _check_variable("--secret", name)
    return name


def _check_variable(option: str, name: str) -> None:
    if not is_variable(name):
        raise RequestError(f"{option} {name!r} is not a variable: use letters, digits and _")
    if is_reserved(name):
        raise RequestError(f"{option} {name} is set by gpuq for each job: use another name")
