"""Options at the top of a script: ``#GPUQ --gpus 2 --time 4h``, and what ``#SBATCH`` says.

Owns which lines are read (comments before the first command, as sbatch has it) and how a line
becomes words. The words are read by the very parser of the command line. A ``#GPUQ`` line
counts more than a ``#SBATCH`` line; nothing that either says is left out silently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpuq.options import Layer, Said
from gpuq.render import printable, say
from gpuq.sbatch import translated
from gpuq.usage import UsageError, usage_text
from ledger.errors import RequestError

_DIRECTIVE = re.compile(rb"#(GPUQ|SBATCH)\b(.*)")

ParseWords = Callable[[Sequence[str]], Mapping[str, Any]]
"""What the command line's parser makes of words, by parameter.

Raises its usage errors, and RequestError for what is no option of a job.
"""


class Directive(NamedTuple):
    """One line of a script that speaks to gpuq."""

    place: str
    """``train.sh line 2``."""
    keyword: str
    words: tuple[str, ...]


def directives_of(script: bytes, name: str) -> list[Directive]:
    """The directives of the script that errors call ``name``.

    One after the first command is told on stderr, not read. Raises RequestError for a line
    that cannot be split into words.
    """
    found, is_top = [], True
    for number, line in enumerate(script.split(b"\n"), start=1):
        is_top = is_top and (not line.strip() or line.lstrip().startswith(b"#"))
        match = _DIRECTIVE.fullmatch(line.rstrip())
        if match is None:
            continue
        keyword, place = match[1].decode(), f"{printable(name)} line {number}"
        if is_top:
            found.append(Directive(place, keyword, _words(place, match[2])))
        else:
            say(f"{place}: #{keyword} is not read behind the first command: move it up")
    return found


def _words(place: str, line: bytes) -> tuple[str, ...]:
    try:
        text = line.decode()
        return tuple(shlex.split(_without_comment(text)))
    except UnicodeDecodeError as error:
        raise RequestError(f"{place} is not UTF-8: save the script as UTF-8") from error
    except ValueError as error:
        raise RequestError(f"{place}: {str(error).lower()}: mend its quotes") from error


def _without_comment(text: str) -> str:
    """``text`` up to the first word outside quotes that begins with ``#``."""
    for match in re.finditer(r"(?:^|(?<=[ \t]))#", text):
        try:
            shlex.split(text[: match.start()])
        except ValueError:
            continue  # within quotes
        return text[: match.start()]
    return text


def said_by_script(script: bytes, name: str, parse_words: ParseWords) -> tuple[Layer, Layer]:
    """What its ``#GPUQ`` lines say, and what its ``#SBATCH`` lines say.

    Raises RequestError, with file, line and mend, for what is no option of a job.
    """
    directives = directives_of(script, name)
    own = [
        Said(place, _values(place, words, parse_words))
        for place, keyword, words in directives
        if keyword == "GPUQ"
    ]
    foreign = [
        Said(place, _values(place, words, parse_words))
        for place, words in _from_sbatch(directives, name)
    ]
    return own, foreign


def _from_sbatch(directives: Sequence[Directive], name: str) -> Iterator[tuple[str, list[str]]]:
    """The ``#SBATCH`` lines in gpuq's words; tells what has none, in one line."""
    left_out: list[str] = []
    for place, keyword, words in directives:
        if keyword == "SBATCH":
            line = translated(place, words)
            left_out += line.left_out
            for note in line.notes:
                say(f"{place}: {note}")
            yield place, line.words
    if left_out:
        say(f"{printable(name)}: gpuq has no word for #SBATCH {', '.join(left_out)}")


def _values(place: str, words: Sequence[str], parse_words: ParseWords) -> Mapping[str, Any]:
    try:
        return parse_words(words)
    except UsageError as error:
        see = "" if error.format_message().endswith("?") else "; see 'gpuq submit --help'"
        raise RequestError(f"{place}: {usage_text(error)}{see}") from error
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from error
