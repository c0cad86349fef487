"""What is told of a job's end, how often, and what happens where nobody takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ledger.keys import NOTICES
from ledger.names import JobId
from roles.notices import Notices
from tests.cli.fleet import Fleet
from tests.waiting import wait_until
from tests.webhook import Webhook, webhook


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as running:
        yield running


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path / "ledger", tmp_path / "state")
    yield fleet
    fleet.close()


@pytest.fixture
def ended(fleet: Fleet, hook: Webhook) -> Fleet:
    """A ledger with two jobs that ended, of which ``aaaaaaaa`` wants it told."""
    fleet.ready("n1-cpu0")
    for name in ("aaaaaaaa", "bbbbbbbb"):
        fleet.submit(name)
        fleet.post()
        fleet.start(name)
        fleet.post()
        fleet.finish(name, rc=3)
        fleet.post()
    job = fleet.state.jobs[JobId("aaaaaaaa")]
    job.spec = replace(job.spec, notify=hook.url)
    return fleet


@pytest.fixture
def tell(ended: Fleet) -> Tell:
    return Tell(ended)


class Tell:
    """One leader after the other; each looks once and ends."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __call__(self) -> None:
        notices = Notices(self.fleet._context)
        notices.look(self.fleet.state)
        notices.close()

    @property
    def noted(self) -> list[str]:
        return [entry.key for entry in self.fleet.store.list(NOTICES)]


def test_an_end_is_told_once_with_all_that_a_receiver_needs(tell: Tell, hook: Webhook) -> None:
    tell()
    job = tell.fleet.state.jobs[JobId("aaaaaaaa")]
    assert hook.posts == [
        {
            "text": "aaaaaaaa job: FAILED, rc=3",
            "job": "aaaaaaaa",
            "name": "job",
            "state": "FAILED",
            "rc": 3,
            "reason": job.reason,
            "organization": "o",
            "class": "batch",
            "pool": "default",
            "user": "u",
            "attempts": 1,
            "submitted_at_ms": job.submitted_at,
            "ended_at_ms": job.ended_at,
        }
    ]
    assert len(tell.noted) == 1
    assert tell.noted[0].startswith("notices/aaaaaaaa.")
    tell()
    assert len(hook.posts) == 1


@pytest.mark.parametrize("answer", [500, 404, 302])
def test_what_is_not_taken_is_told_by_the_next_leader(
    tell: Tell, hook: Webhook, answer: int
) -> None:
    hook.answers = [answer]
    tell()
    assert tell.noted == []
    tell()
    assert len(hook.posts) == 2
    assert hook.posts[0] == hook.posts[1]
    assert len(tell.noted) == 1


def test_it_is_tried_again_by_the_same_leader(
    ended: Fleet, tell: Tell, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roles.notices.RETRY_MIN_MS", 1)
    hook.answers = [500, 503]
    notices = Notices(ended._context)
    notices.look(ended.state)
    wait_until(lambda: tell.noted, deadline_s=30, what="the end is told")
    notices.close()
    assert len(hook.posts) == 3


def test_a_server_that_is_not_there_is_given_up_a_day_after_the_end(
    ended: Fleet, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roles.notices.RETRY_MIN_MS", 1)
    monkeypatch.setattr("roles.notices.GIVE_UP_MS", -1)
    tried = []

    def refuse(url: str, body: bytes) -> None:
        tried.append(url)
        raise ConnectionRefusedError("nobody there")

    notices = Notices(ended._context, refuse)
    notices.look(ended.state)
    notices.close()
    assert len(tried) == 1
    assert tell.noted == []


def test_an_end_is_taken_up_once_and_again_only_where_the_job_ends_again(
    ended: Fleet, hook: Webhook
) -> None:
    notices = Notices(ended._context)
    notices.look(ended.state)
    ended.ready("n2-cpu0")
    ended.post()
    notices.look(ended.state)
    job = ended.state.jobs[JobId("aaaaaaaa")]
    assert job.ended_at is not None
    job.ended_at += 1
    ended.ready("n3-cpu0")
    ended.post()
    notices.look(ended.state)
    notices.close()
    told = [post["ended_at_ms"] for post in hook.posts]
    assert told == [job.ended_at - 1, job.ended_at]
