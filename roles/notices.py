"""Telling the world of a job's end: a POST of JSON to the URL that the job named.

Owns which ends are told, when, and what is remembered of it. The process that leads tells of
the ends that its pages hold, from a thread of its own, so that neither a slot nor a page waits
for somebody's server. What was taken is noted as ``notices/<job>.<ended_at>``; a new leader
tells of all recent ends that have no such note. So an end is told at least once, and twice
where a leader dies between the two. It gives up a day after the end.
"""

from __future__ import annotations

import queue
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple

import msgspec
import structlog

from ledger.errors import GpuqError
from ledger.keys import notice_key
from ledger.state import Job, State
from ledger.timings import DAY_MS
from roles.context import Context

POST_TIMEOUT_S = 10
"""Longest silence of the server."""
RETRY_MIN_MS = 10_000
RETRY_MAX_MS = 600_000
GIVE_UP_MS = DAY_MS

log = structlog.get_logger()

Post = Callable[[str, bytes], None]
"""Sends a body to a URL. Raises OSError or HTTPException unless the answer was 2xx."""


class Notice(NamedTuple):
    """One end that is to be told."""

    key: str
    url: str
    body: bytes
    ended_at: int


class Notices:
    """Begins with ``look``; its thread ends with the process, or by ``close``."""

    def __init__(self, context: Context, post: Post | None = None) -> None:
        self._context = context
        self._post = post or post_json
        self._known: set[str] = set()
        """Keys that this process has taken up."""
        self._seq = -1
        self._news: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def look(self, state: State) -> None:
        """Take up the ends in ``state``, which is posted, that nobody took up here before.

        O(jobs that ended recently), once a page; makes no request.
        """
        if state.seq == self._seq:
            return
        self._seq = state.seq
        wanted = [notice_of(job) for job in map(state.jobs.get, state.ended) if job is not None]
        fresh = [notice for notice in wanted if notice.url and notice.key not in self._known]
        self._known = {notice.key for notice in wanted if notice.url}
        for notice in fresh:
            self._news.put(notice)
        if fresh and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Let the thread end after what it is at; what is not told is left to another leader."""
        if self._thread is not None:
            self._news.put(None)
            self._thread.join(2 * POST_TIMEOUT_S)

    def _run(self) -> None:
        due: dict[Notice, tuple[int, int]] = {}
        """When each is tried again (boot clock), and the pause after that."""
        while True:
            now_ms = self._context.clock.boot_ms()
            wait_ms = max(0, min((at for at, _ in due.values()), default=now_ms) - now_ms)
            try:
                notice = self._news.get(timeout=wait_ms / 1000 if due else None)
            except queue.Empty:
                pass
            else:
                if notice is None:
                    return
                due[notice] = (now_ms, RETRY_MIN_MS)
            now_ms = self._context.clock.boot_ms()
            for notice in [notice for notice, (at, _) in due.items() if at <= now_ms]:
                if self._is_over(notice):
                    del due[notice]
                else:
                    pause_ms = due[notice][1]
                    due[notice] = (now_ms + pause_ms, min(2 * pause_ms, RETRY_MAX_MS))

    def _is_over(self, notice: Notice) -> bool:
        """Whether it is told, by whomever, or given up."""
        store = self._context.store
        try:
            if store.get(notice.key) is not None:
                return True
            self._post(notice.url, notice.body)
            store.put_once(notice.key, notice.body)
        except (OSError, HTTPException, ValueError, GpuqError) as error:
            given_up = store.clock_ms() - notice.ended_at > GIVE_UP_MS
            log.warning("end not told", notice=notice.key, reason=str(error), given_up=given_up)
            return given_up
        return True


def notice_of(job: Job) -> Notice:
    """What is told of a job that has ended; the same for every leader."""
    spec, ended_at = job.spec, job.ended_at
    assert ended_at is not None
    rc = job.last.rc if job.last is not None else None
    said = {
        "text": f"{job.id} {spec.name}: {job.state.value}" + ("" if rc is None else f", rc={rc}"),
        "job": job.id,
        "name": spec.name,
        "state": job.state.value,
        "rc": rc,
        "reason": job.reason,
        "organization": spec.organization,
        "class": spec.workload_class,
        "pool": job.placed.pool,
        "user": spec.user,
        "attempts": len(job.attempts),
        "submitted_at_ms": job.submitted_at,
        "ended_at_ms": ended_at,
    }
    return Notice(notice_key(job.id, ended_at), spec.notify, msgspec.json.encode(said), ended_at)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A POST that is sent elsewhere would arrive as a GET, without its body."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def post_json(url: str, body: bytes) -> None:
    """See ``Post``; redirects are not followed, proxies are those of the environment."""
    headers = {"Content-Type": "application/json", "User-Agent": "gpuq"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=POST_TIMEOUT_S):
        pass  # anything but 2xx is an HTTPError, which is an OSError
