"""docs/LEDGER_FORMAT.md is enough to write another reader from.

``tests.naive_reader`` is one: it comes to the same states as the projection, over the
document's own journal and over random lives of a small world.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable

import msgspec
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import checkpoint, policy
from ledger import events as e
from ledger.arrays import member_id
from ledger.names import JobId, NodeName, WorkerName
from ledger.state import Phase
from tests.naive_reader import NaiveReader
from tests.test_docs import SECTIONS
from tests.world import World, job_id


def lines_of_the_vector() -> list[bytes]:
    block = re.search(r"```text\n(.*?)\n```", SECTIONS["Test vector", ""], flags=re.DOTALL)
    assert block is not None
    return [line.encode() for line in block[1].splitlines()]


def test_the_test_vector_is_what_the_document_says_of_it() -> None:
    section = SECTIONS["Test vector", ""]
    rows = re.findall(r"`journal/(\d+)` \| `(\w{64})` \| `(\w{32})`", section)
    stated = dict(re.findall(r"`([a-z2-7]{8})` is ([A-Z]+)", section))
    pages = lines_of_the_vector()
    reader = NaiveReader(json.loads(pages[0])["ledger"])
    for body, (seq, sha256, fair) in zip(pages, rows, strict=True):
        reader.read(body)
        assert (int(seq), sha256, fair) == (reader.seq, reader.sha256, reader.digest())
        assert e.encode(e.decode_page(body)) == body
    assert {job: found["state"] for job, found in reader.jobs.items()} == stated


def naively(world: World) -> NaiveReader:
    """The world's journal read by the second reader, which checks each page's digest."""
    reader = NaiveReader("test")
    for page in world.pages:
        reader.read(e.encode(page))
    return reader


def outline_of(world: World) -> dict[str, object]:
    """What both readers must agree on."""
    known = world.state
    return {
        "jobs": {
            job.id: (
                str(job.state),
                job.requeues,
                [(int(a.phase), a.rc, a.started_at, a.settled) for a in job.attempts],
            )
            for job in known.jobs.values()
        },
        "workers": {w.name: (w.cursor, w.next_message) for w in known.workers.values()},
        "nodes": {n.name: (n.machine, str(n.liveness)) for n in known.nodes.values()},
        "writers": known.writers,
        "chain": (known.seq, known.page_sha256, known.epoch, known.void_pages),
    }


def outline_read(reader: NaiveReader) -> dict[str, object]:
    return {
        "jobs": {
            name: (
                job["state"],
                job["requeues"],
                [(a["phase"], a["rc"], a["started_at"], a["settled"]) for a in job["attempts"]],
            )
            for name, job in reader.jobs.items()
        },
        "workers": {name: (w["cursor"], w["next"]) for name, w in reader.workers.items()},
        "nodes": {name: (n["machine"], n["liveness"]) for name, n in reader.nodes.items()},
        "writers": dict(reader.writers),
        "chain": (reader.seq, reader.sha256, reader.leader[0], reader.void_pages),
    }


def test_a_checkpoint_is_compressed_json_of_the_documented_parts() -> None:
    world = Life("wfq").run([("submit", 1), ("submit", 2), ("turn", 1), ("start", 0)])
    plain = zstandard.decompress(checkpoint.encode_checkpoint(world.state))
    saved = json.loads(plain)
    assert set(saved) == set(checkpoint.Checkpoint.__struct_fields__)
    assert (saved["seq"], saved["page_sha256"]) == (world.pages[-1].seq, naively(world).sha256)
    states = {name: job["state"] for name, job in saved["state"]["jobs"].items()}
    assert states == {name: job["state"] for name, job in naively(world).jobs.items()}
    messages = [worker["messages"] for worker in saved["state"]["workers"].values()]
    assert {key for of_one in messages for key in of_one} == {"0"}


class Life:
    """Random things that happen to a world of two nodes and two organizations."""

    def __init__(self, discipline: str) -> None:
        self.pool = policy.Pool(discipline=discipline)
        self.world = World(policy.Policy(pools={"default": self.pool}))
        self.world.node_up("n1", 2, gpu_memory_bytes=16)
        self.world.node_up("n2", 1, gpu_memory_bytes=16)
        self.world.turn()
        self.events: dict[str, Callable[[int], None]] = {
            "submit": self.submit,
            "turn": lambda number: self.turn(1 + 700 * number),
            "start": self.of_an_attempt((Phase.ASSIGNED, Phase.REVOKING), self.world.start),
            "finish": self.of_an_attempt(tuple(Phase), self.finish),
            "stopped": self.of_an_attempt((Phase.STOPPING, Phase.LOST), self.stopped),
            "lost": self.of_an_attempt((Phase.STARTED, Phase.LOST), self.lost),
            "cancel": self.of_a_job(self.world.cancel),
            "hold": self.of_a_job(self.world.hold),
            "release": self.of_a_job(self.world.release),
            "move": self.move,
            "policy": self.apply_policy,
            "call": self.call,
            "array": self.array,
            "member": self.of_a_member,
            "retry": self.of_a_job(self.world.retry),
            "drain": self.drain,
            "liveness": self.liveness,
            "claim": self.claim,
            "artifact": lambda number: self.world.see(
                e.ArtifactSeen(path=f"artifacts/{number % 3}")
            ),
            "ready": self.ready,
            "elect": lambda number: self.elect(),
            "void": lambda number: self.void(),
        }

    def run(self, steps: Iterable[tuple[str, int]]) -> World:
        for name, number in steps:
            self.events[name](number)
        self.turn(1)
        return self.world

    def turn(self, after_ms: int) -> None:
        self.world.turn(after_ms=after_ms)

    def submit(self, number: int) -> None:
        self.world.submit(
            "ab"[number % 2],
            slots=2 if number % 5 == 0 else 1,
            estimate_ms=500 + number,
            idempotent=number % 3 == 0,
            held=number % 7 == 0,
            retries=number % 3,
            deadline_at=self.world.at + 9_000 if number % 11 == 0 else 0,
            resumable=number % 2 == 0,
            after=self.dependencies(number),
            after_artifacts=(f"artifacts/{number % 3}",) if number % 6 == 5 else (),
            begin_at=self.world.at + 50 * number if number % 8 == 1 else 0,
            gpu_memory_bytes=(0, 0, 7)[number % 3],
        )

    def dependencies(self, number: int) -> tuple[e.Dependency, ...]:
        """At times some of the jobs that there are, or one that there is not yet."""
        if number % 3:
            return ()
        jobs = [*self.world.state.jobs, job_id(60)]
        chosen = {jobs[number % len(jobs)], jobs[number // 3 % len(jobs)]}
        return tuple(
            e.Dependency(job=job, end=e.ENDS[(number + at) % 3])
            for at, job in enumerate(sorted(chosen))
        )

    def call(self, number: int) -> None:
        """Work for an external service, where the pool is one just now."""
        self.world.submit("ab"[number % 2], input_tokens=number, max_output_tokens=number % 4)

    def array(self, number: int) -> None:
        """0, 1, 4, 6 or a part of that; at times with a limit of its own."""
        ranges = ((0, 1, 1), (4, 4 + number % 4, 2))[: 1 + number % 2]
        self.world.submit(
            "ab"[number % 2],
            array=e.ArraySpec(ranges=ranges, at_once=number % 3),
            idempotent=number % 3 == 0,
            held=number % 7 == 0,
            retries=number % 2,
            deadline_at=self.world.at + 9_000 if number % 11 == 0 else 0,
        )

    def of_a_member(self, number: int) -> None:
        """A user names one member, begun or not, or an index that there is not."""
        arrays = [job.id for job in self.world.state.jobs.values() if job.array is not None]
        if arrays:
            member = member_id(arrays[number % len(arrays)], number % 7)
            act = (self.world.cancel, self.world.hold, self.world.release, self.world.retry)
            act[number % 4](member)

    def apply_policy(self, number: int) -> None:
        api = policy.ApiLimits(tokens_per_minute=90, in_flight=2) if number % 3 == 0 else None
        limits = policy.Limits(slots=number % 3)
        threshold_bytes = (0, 3)[number % 2]
        self.world.apply_policy(
            policy.Policy(
                organizations={"a": policy.Organization(limits=limits)},
                classes={
                    "batch": policy.WorkloadClass(
                        allow=(policy.AllowRule(organizations=("a",)),) if number % 4 == 0 else (),
                        demote_to="interactive",
                    ),
                    "interactive": policy.WorkloadClass(quantum_ms=2_000),
                },
                pools={
                    "default": msgspec.structs.replace(
                        self.pool, api=api, memory_threshold_bytes=threshold_bytes
                    )
                },
            )
        )

    def of_a_job(self, act: Callable[[JobId], None]) -> Callable[[int], None]:
        def event(number: int) -> None:
            jobs = list(self.world.state.jobs)
            if jobs:
                act(jobs[number % len(jobs)])

        return event

    def of_an_attempt(
        self, phases: tuple[Phase, ...], act: Callable[[JobId], None]
    ) -> Callable[[int], None]:
        def event(number: int) -> None:
            jobs = [
                job.id
                for job in self.world.state.jobs.values()
                if job.last is not None and job.last.phase in phases
            ]
            if jobs:
                act(jobs[number % len(jobs)])

        return event

    def finish(self, job: JobId) -> None:
        attempts = self.world.job(job).attempts
        chance = self.world.at + len(self.world.decisions)
        outcome = ("exited", "timeout", "oom", "exclusive", "exited")[chance % 5]
        report = e.Report(input_tokens=chance % 70, output_tokens=3) if chance % 3 else None
        number = 1 + chance % len(attempts)
        self.world.finish(job, rc=chance % 2, outcome=outcome, number=number, report=report)

    def stopped(self, job: JobId) -> None:
        rc = (143, 75, 0)[self.world.at % 3]
        self.world.finish(job, rc=rc, outcome="stopped")

    def lost(self, job: JobId) -> None:
        self.world.lost(job, ran=self.world.at % 2 == 0)

    def move(self, number: int) -> None:
        """To one of two pools, pinned or not, at times to what is no name."""
        workers = ("", "n1-cpu0", "n2-cpu0", "n3 gpu")
        jobs = list(self.world.state.jobs)
        if jobs:
            pool = ("default", "other", "default", "")[number % 4]
            self.world.move(jobs[number % len(jobs)], pool, workers[number // 4 % 4])

    def drain(self, number: int) -> None:
        if number % 3:
            self.world.undrain(f"n{1 + number % 2}")
        else:
            self.world.drain(f"n{1 + number % 2}", now=number % 2 == 0)

    def liveness(self, number: int) -> None:
        known = list(e.Liveness)
        self.world.node_is(f"n{1 + number % 2}", known[number % len(known)])

    def claim(self, number: int) -> None:
        """The oldest open revoke is settled, one way or the other."""
        for ref in self.world.state.revoking[:1]:
            self.world.claim(ref.job, ("start", "revoke")[number % 2])

    def ready(self, number: int) -> None:
        """A new incarnation, at times on another machine."""
        worker = WorkerName(("n1-cpu0", "n1-cpu1", "n2-cpu0")[number % 3])
        node = self.world.state.workers[worker].node
        machine = node if number % 4 else NodeName("elsewhere")
        self.world.ready(worker, e.Slot(kind="cpu", index=0), machine=machine)

    def elect(self) -> None:
        self.world.turn(elected=True)

    def void(self) -> None:
        """A page of a leader that is none: it names an epoch that is not the next."""
        world = self.world
        page = msgspec.structs.replace(
            world.pages[-1],
            seq=world.state.seq + 1,
            epoch=world.state.epoch + 2,
            prev_sha256=world.state.page_sha256,
            facts=tuple(world.facts),
        )
        world.pages.append(page)
        assert not world.projection.apply(page, hashlib.sha256(e.encode(page)).hexdigest())


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(Life("wfq").events)), st.integers(0, 60)), max_size=60
)


@settings(max_examples=60)
@given(discipline=st.sampled_from(policy.DISCIPLINES), steps=STEPS)
def test_a_reader_written_from_the_document_comes_to_the_same_states(
    discipline: str, steps: list[tuple[str, int]]
) -> None:
    world = Life(discipline).run(steps)
    assert outline_read(naively(world)) == outline_of(world)


def test_the_lives_meet_every_state_that_events_lead_to() -> None:
    """The property above would hold of journals in which nothing happens."""
    rng, met = random.Random(1), set()
    for _ in range(40):
        life = Life("wfq")
        steps = [(rng.choice(sorted(life.events)), rng.randrange(60)) for _ in range(60)]
        reader = NaiveReader("test")
        life.run(steps)
        for page in life.world.pages:
            reader.read(e.encode(page))
            met |= {job["state"] for job in reader.jobs.values()}
    assert met == set(e.JobState)
