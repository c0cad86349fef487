"""Which jobs are meant: by id, by a unique beginning of one, by name, ``last``, ``A..B``, ``all``.

Owns the order of these readings. ``A..B`` is what A's submitter sent from A to B, in order of
arrival; ``all`` is what this user sent that has not ended. Where a name stands for several
jobs, the newest one that is open is meant, else the newest; that is said, never silent.
Whatever else is ambiguous is a RequestError that lists the candidates.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuq.arrays import members_named
from gpuq.client import Client
from gpuq.render import printable, say
from gpuq.view import View
from ledger.arrays import member_of
from ledger.errors import RequestError
from ledger.names import JOB_ID, JobId
from ledger.state import Job

PREFIX_MIN_CHARACTERS = 2
"""A single letter would too easily be the beginning of a job that nobody meant."""

LAST = "last"
ALL = "all"
RANGE = ".."

SELECTORS = "Ids, beginnings of ids, names, 'last', ID..ID, ID_3-9 or 'all'."
"""Help of an argument that takes several jobs."""

_PREFIX = re.compile(rf"[a-z2-7]{{{PREFIX_MIN_CHARACTERS},7}}")
_SHOWN_CANDIDATES = 5


def select(client: Client, view: View, text: str) -> JobId:
    """The id of the job that ``text`` stands for; it may be an archived one.

    Raises RequestError where there is none, or more than one by the beginning of its id.
    """
    known = view.state.jobs.keys() | view.state.archive.keys() | view.state.refused.keys()
    if JOB_ID.fullmatch(text) and text in known:
        return JobId(text)
    if member_of(text) is not None:
        return _member(view, JobId(text))
    if text == LAST:
        return _last(client, view)
    named = [job for job in view.state.jobs.values() if job.spec.name == text]
    if named:
        return _newest(named, text)
    text = text.lower()
    if JOB_ID.fullmatch(text) and text in known:
        return JobId(text)
    if _PREFIX.fullmatch(text):
        matches = sorted(job for job in known if job.startswith(text))
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RequestError(
                f"{text!r} is the beginning of {len(matches)} ids: "
                + ", ".join(matches[:_SHOWN_CANDIDATES])
                + (", ..." if len(matches) > _SHOWN_CANDIDATES else "")
            )
    raise RequestError(
        f"no job {printable(text)!r}: name an id, at least 2 characters of its beginning, a "
        "job's name or 'last'; 'gpuq status' lists them"
    )


def select_many(
    client: Client, view: View, texts: Sequence[str], *, asks_for_all: bool
) -> list[JobId]:
    """The ids that ``texts`` stand for, each once, in order.

    Raises RequestError as ``select`` does, where nothing is meant, and where the user says no
    when asked whether really ``all`` are meant (on a terminal only).
    """
    ids: dict[JobId, None] = {}
    for text in texts:
        if text == ALL:
            ids.update(dict.fromkeys(_all(client, view, asks=asks_for_all)))
        elif RANGE in text:
            ids.update(dict.fromkeys(_range(client, view, text)))
        else:
            ids.update(dict.fromkeys(select(client, view, one) for one in members_named(text)))
    return list(ids)


def _member(view: View, text: JobId) -> JobId:
    if view.job(text) is not None or text in view.state.archive:
        return text
    raise RequestError(f"no job {text}: its array has no such index, or ended before it began")


def _all(client: Client, view: View, *, asks: bool) -> list[JobId]:
    user = client.settings.user.value
    own = [job for job in view.open_jobs() if job.spec.user == user]
    ids = [job.id for job in own if view.array_of(job) is None]
    if not ids:
        raise RequestError(f"no job of {printable(user)} is open")
    if asks and sys.stdin.isatty():
        count = f"the {len(ids)} open jobs" if len(ids) > 1 else "the one open job"
        print(f"All? That is {count} of {printable(user)}. [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise RequestError("nothing was changed")
    return ids


def _range(client: Client, view: View, text: str) -> list[JobId]:
    ends = [select(client, view, part) for part in text.split(RANGE, 1) if part]
    jobs = [view.state.jobs[job] for job in ends if job in view.state.jobs]
    if len(jobs) != 2:
        raise RequestError(f"{printable(text)!r} is no range: say ID..ID, two jobs of this ledger")
    first, last = sorted(job.arrival for job in jobs)
    return [
        job.id
        for job in sorted(view.state.jobs.values(), key=lambda job: job.arrival)
        if first <= job.arrival <= last
        and job.spec.user == jobs[0].spec.user
        and view.array_of(job) is None
    ]


def remember_last(client: Client, job: JobId) -> None:
    """Note ``job`` as this machine's last; only a convenience, so a full disk is no error."""
    path = _note(client)
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(job)
        fresh.replace(path)
    except OSError as error:
        say(f"gpuq: cannot note the last job in {path}: {error.strerror}")


def _newest(jobs: list[Job], name: str) -> JobId:
    chosen = max(jobs, key=lambda job: (not job.state.ended, job.arrival))
    if len(jobs) > 1:
        say(
            f"gpuq: {len(jobs)} jobs are named {name!r}; taking {chosen.id}, the newest"
            + ("" if chosen.state.ended else " that is open")
        )
    return chosen.id


def _last(client: Client, view: View) -> JobId:
    """The last job submitted from here, else the last one of this user from anywhere."""
    try:
        noted = JobId(_note(client).read_text().strip())
    except OSError:
        noted = JobId("")
    if noted in view.state.jobs or noted in view.state.archive:
        return noted
    user = client.settings.user.value
    own = [job for job in view.state.jobs.values() if job.spec.user == user]
    if not own:
        raise RequestError(f"{printable(user)} has submitted no job yet, so there is no last one")
    return max(own, key=lambda job: job.arrival).id


def _note(client: Client) -> Path:
    return client.ledger_dir / "last"
