"""Workers in the windows of a tmux session, to which an operator can attach.

Owns the calls of ``tmux``, one command line each. A window bears its worker's name, runs the
worker itself, and stays with what was last said there until the worker is started again in
it. Nothing rests on a window: where tmux gives no answer ``TmuxError`` says why, and the
worker can run without one.

A tmux server gives its windows its own environment, not the caller's. So the caller's goes
through a file that only its user may read, and which the window removes
(``roles/window.py``): a command line would show credentials to everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roles.processes import Identity, identity_of
from roles.window import __file__ as WINDOW_PROGRAM

_TIMEOUT_S = 10


class TmuxError(Exception):
    """tmux is not there, or did not do what it was asked; the argument says why."""


class Windows:
    """One session's windows; the session begins with the first and ends with the last.

    ``folder`` is where environments are passed on.
    """

    def __init__(self, session: str, folder: Path) -> None:
        self._session = session
        self._folder = folder

    def start(self, name: str, argv: Sequence[str]) -> Identity | None:
        """Run ``argv`` in the window ``name``; its process, None where it has ended already.

        Raises TmuxError. What still runs in a window of that name is killed.
        """
        env_file = self._folder / f"{name}.env"
        program = [sys.executable, "-I", "-S", WINDOW_PROGRAM, str(env_file), *argv]
        target = self._target(name)
        try:
            _write_private(env_file, json.dumps(dict(os.environ)).encode())
            printed = _tmux(
                *(*self._place(name), "-c", os.getcwd(), "--", *program),
                *(";", "set-option", "-w", "-t", target, "remain-on-exit", "on"),
                *(";", "display-message", "-p", "-t", target, "#{pane_pid}"),
            )
            return identity_of(int(printed))
        except (TmuxError, OSError, ValueError) as error:
            env_file.unlink(missing_ok=True)
            raise TmuxError(str(error)) from error

    def exit_code(self, name: str) -> int | None:
        """Of what has ended in the window, -n for signal n; None where tmux does not say."""
        code = "#{?pane_dead_signal,-#{pane_dead_signal},#{pane_dead_status}}"
        try:
            return int(_tmux("list-panes", "-t", self._target(name), "-F", code))
        except (TmuxError, ValueError):
            return None

    def close(self, name: str) -> None:
        """Remove the window, unless something runs in it or it is gone."""
        try:
            if _tmux("list-panes", "-t", self._target(name), "-F", "#{pane_dead}") == "1":
                _tmux("kill-window", "-t", self._target(name))
        except TmuxError:
            return

    def _place(self, name: str) -> list[str]:
        """The command that makes the window, or takes over the one that is there."""
        try:
            listed = _tmux("list-windows", "-t", f"={self._session}", "-F", "#{window_name}")
        except TmuxError:
            return ["new-session", "-d", "-s", self._session, "-n", name]
        if name in listed.splitlines():
            return ["respawn-window", "-k", "-t", self._target(name)]
        return ["new-window", "-d", "-t", f"={self._session}:", "-n", name]

    def _target(self, name: str) -> str:
        return f"={self._session}:={name}"


def _tmux(*words: str) -> str:
    """What one call printed, without the newline at its end."""
    try:
        done = subprocess.run(
            ["tmux", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise TmuxError("tmux is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise TmuxError(f"tmux gave no answer for {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise TmuxError(done.stderr.strip() or f"tmux ended with {done.returncode}")
    return done.stdout.rstrip("\n")


def _write_private(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
