"""Jobs that fail within seconds of their start: what they say of nodes and of commands.

Owns the evidence, as moves on a ``State``; ``scheduling.health`` draws the conclusions. A
*fast failure* is an attempt whose command exited with an error, or could not be started at
all, within ``FAST_MS``. It speaks against the node on which it ran, until the same command
fails fast on a second node: then it speaks against the command alone, wherever it ran.

A node is *suspect* after ``ROW`` fast failures in a row that speak against it, if they are of
different commands of at least two flows, or of commands that have succeeded on other nodes.
One command that fails again and again is counted once unless it has succeeded elsewhere, and
the commands of one flow are not enough: users who submit what cannot work (the usual case)
make no node suspect. A job that succeeds, or lasts longer than ``FAST_MS``, ends the row.

A command is *broken* that failed fast, as the last thing it did there, on two nodes or more,
and succeeded on none that is remembered.

Bounded: ``ROW`` failures a node, ``COMMANDS_MAX`` commands, ``NODES_MAX`` nodes a command.
Times are those of facts. Pure.
"""

from __future__ import annotations

import hashlib

from ledger.events import JobSpec
from ledger.names import NodeName
from ledger.state import Attempt, CommandRecord, FastFailure, Job, NodeHealth, State

FAST_MS = 10_000
"""An attempt that lasted so long has made use of its node."""

ROW = 3

COMMANDS_MAX = 1_000

NODES_MAX = 8


def command_of(spec: JobSpec) -> str:
    """Fingerprint of what would run: script, arguments and working directory."""
    long_words = (spec.words,) if spec.words else ()
    text = "\0".join((spec.script, spec.cwd, *spec.argv, *long_words))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def failed_fast(attempt: Attempt) -> bool:
    """Whether it ended by itself, with an error, within ``FAST_MS`` of its start."""
    return (
        attempt.outcome in ("exited", "failed_to_start")
        and attempt.rc != 0
        and not attempt.stop_ordered
        and not has_lasted(attempt, attempt.ended_at or 0)
    )


def succeeded(attempt: Attempt) -> bool:
    return attempt.outcome == "exited" and attempt.rc == 0


def has_lasted(attempt: Attempt, until: int) -> bool:
    """Whether it ran for ``FAST_MS`` or more, as of ``until`` (ms since the epoch)."""
    return attempt.started_at is not None and until - attempt.started_at >= FAST_MS


def is_suspect(health: NodeHealth) -> bool:
    """Whether the node's row of failures is enough to block it."""
    row = health.failures
    return len(row) == ROW and (
        all(failure.proven for failure in row) or len({failure.flow for failure in row}) > 1
    )


def is_broken(record: CommandRecord | None) -> bool:
    """Whether the command fails wherever it is tried."""
    return record is not None and len(record.failed_on) > 1 and not record.succeeded_on


def fails_elsewhere(state: State, command: str, node: NodeName) -> bool:
    """Whether the command has failed fast on another node than this one."""
    record = state.commands.get(command)
    return record is not None and any(other != node for other in record.failed_on)


class HealthLog:
    """Takes note of how attempts end, in the health of nodes and the records of commands."""

    def __init__(self, state: State) -> None:
        self._state = state

    def ended(self, job: Job, attempt: Attempt) -> None:
        """The last attempt of ``job`` has ended by a ``finish``. O(1)."""
        node = self._state.workers[attempt.lead].node
        command = command_of(job.spec)
        if failed_fast(attempt):
            record = self._record(command)
            _move(node, record.succeeded_on, record.failed_on)
            self._blame(node, job, command, record)
            attempt.excused = bool(self._state.nodes[node].health.blocked) and not fails_elsewhere(
                self._state, command, node
            )
        elif succeeded(attempt):
            record = self._record(command)
            _move(node, record.failed_on, record.succeeded_on)
            self._state.nodes[node].health.failures.clear()
        elif has_lasted(attempt, attempt.ended_at or 0):
            self._state.nodes[node].health.failures.clear()

    def trust(self, spec: JobSpec) -> None:
        """A user wants the command to be tried again."""
        record = self._state.commands.get(command_of(spec))
        if record is not None:
            record.failed_on.clear()

    def _record(self, command: str) -> CommandRecord:
        """The command's record, which is now the newest; the oldest of too many is forgotten."""
        commands = self._state.commands
        record = commands.pop(command, None) or CommandRecord()
        commands[command] = record
        if len(commands) > COMMANDS_MAX:
            del commands[next(iter(commands))]
        return record

    def _blame(self, node: NodeName, job: Job, command: str, record: CommandRecord) -> None:
        """Put the failure into the node's row, or take the command out of all rows."""
        elsewhere = [other for other in record.failed_on if other != node]
        if elsewhere:
            for name in (node, *elsewhere):
                row = self._state.nodes[name].health.failures
                row[:] = [failure for failure in row if failure.command != command]
            return
        health = self._state.nodes[node].health
        proven = any(other != node for other in record.succeeded_on)
        seen = any(f.command == command and not f.proven for f in health.failures)
        if health.blocked or (seen and not proven):
            return
        failure = FastFailure(job=job.id, command=command, flow=job.placed.flow, proven=proven)
        health.failures = [*health.failures, failure][-ROW:]


def _move(node: NodeName, source: list[NodeName], target: list[NodeName]) -> None:
    """What the command did last on ``node`` is what the list ``target`` says."""
    for nodes in (source, target):
        if node in nodes:
            nodes.remove(node)
    target.append(node)
    del target[:-NODES_MAX]
