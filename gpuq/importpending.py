"""``gpuq import-pending``: what still waits in a bucket of the earlier shell scripts.

Owns the reading of that layout: ``WORKER/pending/NAME.sh`` waits for one worker,
``_class-pending/CLASS/NAME.sh`` for any worker of a class. Each script becomes a job whose key
is its object's name and content, so that importing twice submits once. Nothing is written or
deleted in the old folders.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from gpuq.client import Client, invocation_of, open_client, store_at
from gpuq.config import choose_store
from gpuq.render import printable, say
from gpuq.script import Body, check_script
from gpuq.submission import submit_wish, wish_for
from gpuq.view import View, read_view
from ledger.clock import SystemClock
from ledger.errors import RequestError
from ledger.names import NAME, WORKER
from ledger.stores.base import Store

_OF_WORKER = re.compile(r"([^/]+)/pending/([^/]+\.sh)")
_OF_CLASS = re.compile(r"_class-pending/([^/]+)/([^/]+\.sh)")


class Pending(NamedTuple):
    """One script that waits; exactly one of ``worker`` and ``pool`` is not empty."""

    key: str
    file: str
    worker: str
    pool: str

    @property
    def place(self) -> str:
        return self.worker or f"pool {self.pool}"


def import_pending(
    context: typer.Context,
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", help="s3://bucket/gpuq, with WORKER/pending/ below it."),
    ],
    *,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="OLD=NEW: a folder's worker, or a class's pool; repeatable."),
    ] = None,
    chdir: Annotated[str, typer.Option("--chdir", help="Directory of the jobs on the node.")] = "/",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Check, write nothing.")] = False,
) -> None:
    """Submit the scripts that wait in the bucket of the earlier shell scripts."""
    names = dict(_renaming(text) for text in mapping or ())
    client = open_client(context)
    invocation = invocation_of(context)
    store = store_at(choose_store(client.settings, old, invocation), SystemClock(), random.Random())
    waiting = pending_in(store, names)
    view = read_view(client.load_journal(), client.settings.timings)
    commands: Any = context.find_root().command
    as_submit = typer.Context(commands.commands["submit"], obj=invocation)
    refused = 0
    for pending in waiting:
        try:
            outcome = _import_one(as_submit, client, view, store, pending, chdir, dry_run=dry_run)
        except RequestError as error:
            refused += 1
            outcome = f"refused: {error}"
        print(printable(f"{pending.key} -> {pending.place}: {outcome}"), flush=True)
    say(
        f"gpuq: {len(waiting)} scripts wait in {store.url}; nothing was changed there: end the "
        "workers of the shell scripts, or they run them too"
    )
    if refused:
        raise RequestError(
            f"{refused} of {len(waiting)} were refused: mend them, then import again"
        )


def pending_in(store: Store, names: Mapping[str, str]) -> list[Pending]:
    """What waits, in the order of its keys; ``names`` has the new name of an old one.

    Raises RequestError, which names all of them, for workers and classes that need one.
    """
    found, unknown = [], []
    for entry in store.list(""):
        if match := _OF_WORKER.fullmatch(entry.key):
            worker = names.get(match[1], match[1])
            found.append(Pending(entry.key, match[2], worker, ""))
            if not WORKER.fullmatch(worker):
                unknown.append(match[1])
        elif match := _OF_CLASS.fullmatch(entry.key):
            pool = names.get(match[1], match[1])
            found.append(Pending(entry.key, match[2], "", pool))
            if not NAME.fullmatch(pool):
                unknown.append(match[1])
    if unknown:
        listed = list(dict.fromkeys(unknown))
        raise RequestError(
            f"{', '.join(listed)}: no such name can be a worker (NODE-gpuN) or a pool here: say "
            f"--map {listed[0]}=NEW for each"
        )
    return found


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise RequestError(f"--map {text!r}: say --map OLD=NEW")
    return old, new


def _import_one(
    context: typer.Context,
    client: Client,
    view: View,
    store: Store,
    pending: Pending,
    chdir: str,
    *,
    dry_run: bool,
) -> str:
    """What became of one script, in words. Raises RequestError where it is refused."""
    script = store.get(pending.key)
    if script is None:
        return "gone meanwhile"
    check_script(script, pending.file)
    body = Body(name=pending.file, path=pending.file, script=script)
    said = {
        "worker": pending.worker or None,
        "pool": pending.pool or None,
        "chdir": chdir,
        "key": f"import-pending:{pending.key}:{hashlib.sha256(script).hexdigest()}",
    }
    wish = wish_for(context, client, view, body, said)
    if wish.spec.id in view.state.jobs or wish.spec.id in view.state.archive:
        return f"already imported as {wish.spec.id}"
    if dry_run:
        return "would be submitted"
    submit_wish(client, view, wish)
    return f"submitted {wish.spec.id}"
