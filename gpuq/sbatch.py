"""``#SBATCH`` lines in gpuq's words, for scripts that were written for Slurm.

Owns which of sbatch's options have a word here. The forms are those of sbatch's manual:
``--time=1:00:00``, ``--time 1:00:00``, ``-t 1:00:00``, ``-t1:00:00``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ledger.errors import RequestError

_SAME_VALUE = {
    "--job-name": "--name",
    "--time": "--time",
    "--gpus": "--gpus",
    "--gpus-per-node": "--gpus",
    "--array": "--array",
    "--dependency": "--after",
    "--chdir": "--chdir",
    "--signal": "--signal",
}
"""What is said alike but for the option's name."""

_SHORT = {
    "-J": "--job-name",
    "-t": "--time",
    "-G": "--gpus",
    "-a": "--array",
    "-d": "--dependency",
    "-D": "--chdir",
    "-o": "--output",
    "-e": "--error",
}

_LOGS = ("--output", "--error")
_NO_LIMIT = ("0", "infinite", "unlimited")
_GRES = re.compile(r"gpu(?::([^:,()]+(?:[ ._-][^:,()]+)*))?(?::([0-9]+))?", re.IGNORECASE)


class Translated(NamedTuple):
    """One line in gpuq's words, and what of it has none."""

    words: list[str]
    left_out: list[str]
    notes: list[str]


def translated(place: str, words: Sequence[str]) -> Translated:
    """Raises RequestError, which names ``place``, where an option lacks its value."""
    line = Translated([], [], [])
    for option, value, shown in _options(words):
        if option in _LOGS:
            line.notes.append(f"{shown} has no effect: what a job writes is in 'gpuq logs JOB'")
        elif option not in _SAME_VALUE and option != "--gres":
            line.left_out.append(shown)
        elif not value:
            raise RequestError(f"{place}: {shown} needs a value")
        elif option == "--gres":
            _add_gres(line, value, shown)
        elif option != "--time" or value.lower() not in _NO_LIMIT:
            line.words.append(f"{_SAME_VALUE[option]}={value}")
    return line


def _options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Long name, value (empty: none) and spelling of each option.

    A word that is no option is the value of the option before it.
    """
    at = 0
    while at < len(words):
        word = words[at]
        if word.startswith("--"):
            option, equals, value = word.partition("=")
        else:
            option, value, equals = _SHORT.get(word[:2], word[:2]), word[2:].removeprefix("="), ""
            equals = "=" if value else ""
        at += 1
        shown = word
        if not equals and at < len(words) and not words[at].startswith("-"):
            value = words[at]
            shown = f"{word} {value}"
            at += 1
        yield option, value, shown


def _add_gres(line: Translated, value: str, shown: str) -> None:
    match = _GRES.fullmatch(value)
    if match is None:
        line.left_out.append(shown)
        return
    kind, count = match[1] or "", match[2] or "1"
    if kind.isdigit():  # gpu:2
        kind, count = "", kind
    line.words.append(f"--gpus={kind}:{count}" if kind else f"--gpus={count}")
