"""Arrays as people type them: ``--array 0-9999%50``, ``--sweep lr=1e-3,1e-4``; how one is shown.

Owns the forms, which are Slurm's for ``--array``, and the words for how far an array has come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gpuq.options import Choices, Kind, Option
from ledger.arrays import ARRAY_MAX, malformed, member_id, size_of
from ledger.errors import RequestError
from ledger.events import ArraySpec, JobState
from ledger.names import JobId
from ledger.state import Job
from ledger.variables import is_variable, looks_secret

_N = r"([0-9]{1,9})"
_PART = re.compile(rf"{_N}(?:-{_N}(?::{_N})?)?")
_ARRAY = re.compile(rf"([^%]+)(?:%{_N})?")
_MEMBERS = re.compile(r"(.+)_([0-9,:-]+)")

_FORMS = "say indices as in 0-99, 1,3,5-9:2 or 0-999%50 (at most 50 at once)"

_OWN = frozenset(
    {"JOB_ID", "ATTEMPT", "REPORT", "CANCEL", "TOKEN", "SNAPSHOT", "ARRAY_ID", "ARRAY_INDEX"}
)
"""``GPUQ_<name>`` of these is gpuq's own."""


def parse_array(text: str) -> ArraySpec:
    """Indices and how many at once, as Slurm reads them. Raises RequestError."""
    match = _ARRAY.fullmatch(text.strip())
    if match is None or match[2] == "0":
        raise RequestError(f"--array {text!r}: {_FORMS}")
    ranges = tuple(_ranges(_indices(f"--array {text!r}", match[1])))
    return _checked("--array", ArraySpec(ranges=ranges, at_once=int(match[2] or 0)))


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """``lr=1e-3,1e-4``, ``seed=0-4``: a name and its values. Raises RequestError."""
    name, equals, values = text.partition("=")
    if not equals or not is_variable(name) or not all(values.split(",")):
        raise RequestError(f"--sweep {text!r}: say NAME=VALUE,VALUE,... or NAME=0-4")
    if name in _OWN or looks_secret(name):
        raise RequestError(f"--sweep {name}: GPUQ_{name} is gpuq's own or a secret: rename it")
    chosen: list[str] = []
    for value in values.split(","):
        is_range = "-" in value and _PART.fullmatch(value) is not None
        numbers = _indices(f"--sweep {text!r}", value) if is_range else [value]
        chosen.extend(str(number) for number in numbers)
    return name, tuple(chosen)


def _indices(what: str, text: str) -> list[int]:
    """All that ``1,3,5-9:2`` names, each once, in order."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last, step = (int(n) for n in (match.groups("1") if match else (1, 0, 1)))
        if match is None or step == 0:
            raise RequestError(f"{what}: {_FORMS}")
        numbers = range(first, (first if match[2] is None else last) + 1, step)
        if not numbers:
            raise RequestError(f"{what}: {part} ends before it begins")
        if len(found) + len(numbers) > ARRAY_MAX:
            raise RequestError(f"{what}: an array has at most {ARRAY_MAX} members")
        found.update(numbers)
    return sorted(found)


def _ranges(indices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The same as ranges of even steps, the longest first found."""
    at = 0
    while at < len(indices):
        step = indices[at + 1] - indices[at] if at + 1 < len(indices) else 1
        end = at
        while end + 1 < len(indices) and indices[end + 1] - indices[end] == step:
            end += 1
        yield indices[at], indices[end], step if end > at else 1
        at = end + 1


def _checked(flag: str, array: ArraySpec) -> ArraySpec:
    if wrong := malformed(array):
        raise RequestError(f"{flag}: {wrong}")
    return array


def _show(array: ArraySpec) -> str:
    return f"{size_of(array)} members" + (f", {array.at_once} at once" if array.at_once else "")


def _show_sweep(sweep: Sequence[tuple[str, Sequence[str]]]) -> str:
    return " by ".join(f"{name} ({len(values)})" for name, values in sweep)


ARRAY: Option[ArraySpec | None] = Option(
    flags=("--array", "-a"), help="One job for each index: 0-9999%50, 1,3,5-9:2.",
    read=parse_array, default=None, show=_show,
)  # fmt: skip
SWEEP: Option[tuple[tuple[str, tuple[str, ...]], ...]] = Option(
    flags=("--sweep",), help="One job for each value: lr=1e-3,1e-4; repeated: each pair.",
    kind=Kind.LIST, read=parse_sweep, default=(), show=_show_sweep,
)  # fmt: skip


def array_of(choices: Choices) -> ArraySpec | None:
    """What the two options ask for; None where neither was said. Raises RequestError."""
    array, sweep = choices[ARRAY], choices[SWEEP]
    if array is not None and sweep:
        raise RequestError("say --array or --sweep: a sweep has its own indices, from 0")
    if not sweep:
        return array
    names = [name for name, _ in sweep]
    if len(set(names)) < len(names):
        raise RequestError("--sweep names a variable twice: give all its values at once")
    size = math.prod(len(values) for _, values in sweep)
    return _checked("--sweep", ArraySpec(ranges=((0, size - 1, 1),), sweep=sweep))


def members_named(text: str) -> list[str]:
    """``ID_3-9`` as ``ID_3``, ``ID_4``, ...; anything else as it stands. Raises RequestError."""
    match = _MEMBERS.fullmatch(text)
    if match is None or not re.search("[,:-]", match[2]):
        return [text]
    return [member_id(JobId(match[1]), index) for index in _indices(repr(text), match[2])]


def counts_of(job: Job) -> dict[str, int]:
    """Members of an array by what became of them; those that will never begin are cancelled."""
    array = job.array
    assert array is not None
    done, cancelled = (
        array.ended.get(state, 0) for state in (JobState.COMPLETED, JobState.CANCELLED)
    )
    over = array.closed is not None
    return {
        "done": done,
        "running": array.begun,
        "failed": sum(array.ended.values()) - done - cancelled,
        "cancelled": cancelled + (array.left if over else 0),
        "pending": (0 if over else array.left) + len(array.open) - array.begun,
    }


def progress_of(job: Job) -> str:
    """``12 done, 3 running, 1 failed, 84 pending``."""
    return ", ".join(f"{count} {what}" for what, count in counts_of(job).items() if count)


def array_json(job: Job) -> dict[str, Any] | None:
    """Of an array its counts; None of any other job."""
    return None if job.array is None else counts_of(job)
