"""``gpuq completion``: what a shell may put for the word that is being typed.

Owns the scripts for bash, zsh and fish, and the hidden ``gpuq complete`` that they call. What
is completed follows from the commands themselves and from what their arguments are called
(JOB, NODE). Only plain words are offered, because a shell takes them as they are. Nothing is
written but the cached view, and nothing is said where something is wrong: a shell that
completes has no place for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from gpuq.client import invocation_of
from gpuq.config import StoreFlags, read_settings
from gpuq.knownjobs import find_known_state
from ledger.errors import GpuqError
from ledger.events import JobState
from ledger.state import Job, State

ENDED_SHOWN = 20
"""So many of the jobs that ended last are offered."""

_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")

_SCRIPTS = {
    "bash": """\
_gpuq() {
    local IFS=$'\\n'
    COMPREPLY=($(gpuq complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _gpuq gpuq
""",
    "zsh": """\
#compdef gpuq
_gpuq() {
    local -a found
    found=(${(f)"$(gpuq complete -- "${(@)words[2,CURRENT]}" 2>/dev/null | cut -f1)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _gpuq gpuq
""",
    "fish": """\
function __gpuq_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (gpuq complete -- $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c gpuq -f -a '(__gpuq_complete)'
""",
}


class Shell(StrEnum):
    """The shells for which there is a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class Candidate(NamedTuple):
    """What may stand for a word, and what it is."""

    word: str
    about: str = ""


_Values = Callable[[State], Iterable[Candidate]]


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print what makes a shell complete commands, options, jobs and nodes."""
    print(_SCRIPTS[shell.value], end="")


def complete(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD")] = None,
) -> None:
    """Print what may stand for the last of the words behind 'gpuq'; for shells."""
    *before, last = words or [""]
    last = last.removeprefix("=")  # bash splits --pool=x in three
    wanted = _wanted(context.find_root().command, before, last)
    if callable(wanted):
        state = _known_state(context, before)
        wanted = list(wanted(state)) if state is not None else []
    for candidate in wanted:
        if candidate.word.startswith(last) and _PLAIN.fullmatch(candidate.word):
            sys.stdout.write("\t".join(filter(None, candidate)) + "\n")


def _known_state(context: typer.Context, words: Sequence[str]) -> State | None:
    flags = invocation_of(context).flags
    if "--store" in words[:-1]:
        flags = StoreFlags(store=words[words.index("--store") + 1])
    try:
        return find_known_state(read_settings(flags, invocation_of(context).environ))
    except GpuqError:
        return None


# --- what is wanted at a place


def _wanted(root: Any, before: Sequence[str], last: str) -> list[Candidate] | _Values:
    """The candidates for ``last``, or how they follow from the ledger; [] for a file."""
    command, place, option = root, 0, None
    for word in before:
        if word == "--":
            return []
        if word == "=":
            continue
        if option is not None:
            option = None
        elif word.startswith("-"):
            option = None if "=" in word else _option_with_value(root, command, word)
        elif not hasattr(command, "commands"):
            place += 1
        elif word in command.commands:
            command = command.commands[word]
        else:
            return []
    if option is not None:
        return _of_option(command, option)
    if last.startswith("-"):
        return [Candidate(flag) for flag in _flags(root, command) if flag.startswith("--")]
    if hasattr(command, "commands"):
        return [
            Candidate(name, child.get_short_help_str(60))
            for name, child in command.commands.items()
            if not child.hidden
        ]
    return _of_argument(command, place)


def _flags(*commands: Any) -> Iterator[str]:
    """All that begins with a dash at this place; those that choose the store go anywhere."""
    for command in dict.fromkeys(commands):
        for parameter in command.params:
            yield from (flag for flag in parameter.opts if flag.startswith("-"))
    yield "--help"


def _option_with_value(root: Any, command: Any, word: str) -> Any:
    for parameter in (*command.params, *root.params):
        if word in parameter.opts and not getattr(parameter, "is_flag", True):
            return parameter
    return None


def _of_option(command: Any, option: Any) -> list[Candidate] | _Values:
    match option.opts[0]:
        case "--worker":
            return _workers
        case "--pool":
            return _pools
        case "--exclude":
            return _nodes
        case "--after":
            return lambda state: _jobs(state, _concerns("wait"))
        case "--from" if command.name == "move":
            return _nodes
    return []


def _of_argument(command: Any, place: int) -> list[Candidate] | _Values:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if not arguments or (place >= len(arguments) and arguments[-1].nargs == 1):
        return []
    argument = arguments[min(place, len(arguments) - 1)]
    match (argument.metavar or "").strip("[]."):
        case "JOB":
            return lambda state: _jobs(state, _concerns(command.name))
        case "NODE":
            return _nodes
        case "SHELL":
            return [Candidate(shell) for shell in Shell]
    return []


# --- what the ledger has to offer


def _concerns(command: str) -> Callable[[JobState], bool]:
    """Which jobs a command can do anything to."""
    match command:
        case "cancel" | "kill" | "wait":
            return lambda state: not state.ended
        case "hold" | "move":
            return lambda state: state.queued
        case "release":
            return lambda state: state is JobState.HELD
        case "retry":
            return lambda state: state.retryable
    return lambda state: True


def _jobs(state: State, concerned: Callable[[JobState], bool]) -> Iterator[Candidate]:
    """Ids, the newest first, then names and ``last``."""
    jobs = sorted(state.jobs.values(), key=lambda job: job.arrival, reverse=True)
    ended = [job for job in jobs if job.state.ended][:ENDED_SHOWN]
    offered = [
        job for job in jobs if concerned(job.state) and (not job.state.ended or job in ended)
    ]
    for job in offered:
        yield Candidate(job.id, _about(job))
    for name in dict.fromkeys(job.spec.name for job in offered):
        yield Candidate(name, "name of a job")
    yield Candidate("last", "submitted last")


def _about(job: Job) -> str:
    name = job.spec.name if _PLAIN.fullmatch(job.spec.name) else ""
    return f"{name} {job.state.value}".strip()


def _nodes(state: State) -> Iterator[Candidate]:
    for name in sorted(state.nodes):
        yield Candidate(name, "node")


def _workers(state: State) -> Iterator[Candidate]:
    for name in sorted(state.workers):
        yield Candidate(name, state.workers[name].pool)


def _pools(state: State) -> Iterator[Candidate]:
    pools = {worker.pool for worker in state.workers.values()} | set(state.policy.pools)
    for name in sorted(pools - {""}):
        yield Candidate(name, "pool")
