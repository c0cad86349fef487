"""The documents say what the code does.

docs/LEDGER_FORMAT.md: every body with all its fields, every key, every example; and it is
enough to write another reader from, because ``tests.naive_reader`` is one, and comes to the
same states as the projection. docs/ARCHITECTURE.md: the defaults and the table of rules.
"""

from __future__ import annotations

import enum
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ledger import checkpoint, keys, policy, state, timings
from ledger import events as e
from ledger.fair_state import Flow, PoolClock
from ledger.names import JobId, NodeName, WorkerName, WriterName, keyed_job_id
from ledger.state import Phase
from ledger.timings import Timings
from tests.naive_reader import NaiveReader
from tests.world import World

ROOT = Path(__file__).resolve().parent.parent
FORMAT = (ROOT / "docs" / "LEDGER_FORMAT.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()

Section = tuple[str, str]
Body = type[msgspec.Struct]


def sections(text: str) -> dict[Section, str]:
    """What stands under each heading of the third level (or of the second, before any)."""
    found: dict[Section, str] = {}
    for chapter in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, *rest = re.split(r"^### ", chapter, flags=re.MULTILINE)
        chapter_title, _, before = title.partition("\n")
        found[chapter_title, ""] = before
        for part in rest:
            name, _, body = part.partition("\n")
            found[chapter_title, name.strip("`")] = body
    return found


SECTIONS = sections(FORMAT)


def tags(chapter: str, union: Any) -> dict[Section, Body]:
    return {(chapter, str(body.__struct_config__.tag)): body for body in get_args(union)}


KINDS: dict[Section, Body] = {
    **tags("Facts", e.AnyFact),
    **tags("Seen", e.AnySeen),
    **tags("Decisions", e.AnyDecision),
    **tags("Mailboxes", e.AnyMessage),
}

CHECKPOINTED: tuple[Body, ...] = (
    checkpoint.Checkpoint, state.State, state.Job, state.Placement, state.Attempt,
    state.ArchivedJob, state.Worker, state.Node, state.NodeHealth, state.FastFailure,
    state.CommandRecord, state.Reservation, Flow, PoolClock,
)  # fmt: skip

BODIES: dict[Section, Body] = {
    ("gpuq.json", ""): e.LedgerInfo,
    **{("Facts", body.__name__): body for body in (e.Fact, e.WorkerFact, e.JobSpec, e.Slot)},
    **{
        ("Facts", body.__name__): body
        for body in (
            policy.Policy,
            policy.Organization,
            policy.WorkloadClass,
            policy.AllowRule,
            policy.FlowAgreement,
            policy.Limits,
            policy.Pool,
            policy.ApiLimits,
            policy.RetryRule,
        )
    },
    **{("Beats", body.__name__): body for body in (e.Beat, e.SlotBeat)},
    **{("The journal", body.__name__): body for body in (e.Page, e.Posted)},
    ("Claims", "Claim"): e.Claim,
    **{("Checkpoints", body.__name__): body for body in CHECKPOINTED},
}

UNIONS = {
    frozenset(get_args(union)): name
    for union, name in (
        (e.AnyFact, "fact"),
        (e.AnySeen, "seen"),
        (e.AnyDecision, "decision"),
        (e.AnyMessage, "message"),
    )
}


def type_name(kind: inspect.Type) -> str:
    """The word of the document for a type."""
    match kind:
        case inspect.IntType():
            return "integer"
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "boolean"
        case inspect.EnumType(cls=cls):
            return "integer" if issubclass(cls, enum.IntEnum) else cls.__name__
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {type_name(key)} to {type_name(value)}"
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return f"list of {type_name(item)}"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(map(type_name, items))}]"
        case inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.UnionType(types=types):
            structs = frozenset(t.cls for t in types if isinstance(t, inspect.StructType))
            if structs in UNIONS:
                return UNIONS[structs]
            (other,) = (t for t in types if not isinstance(t, inspect.NoneType))
            return f"{type_name(other)} or null"
    raise AssertionError(f"no word for {kind}")


def default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    return f"`{msgspec.json.encode(value, order='deterministic').decode()}`"


def fields_of(body: Body) -> set[tuple[str, str, str]]:
    """Name, type and default of each field that the body does not share with its family."""
    family = next((f for f in (e.WorkerFact, e.Fact) if f in body.__mro__[1:]), None)
    shared = set(family.__struct_fields__) if family is not None else set()
    types = inspect.type_info(body)
    assert isinstance(types, inspect.StructType)
    return {
        (field.name, type_name(kind.type), default_text(field))
        for field, kind in zip(msgspec.structs.fields(body), types.fields, strict=True)
        if field.name not in shared
    }


def documented_fields(section: str) -> set[tuple[str, str, str]]:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", section, flags=re.MULTILINE)
    return {(name, kind, default) for name, kind, default in rows}


@pytest.mark.parametrize(("place", "body"), {**KINDS, **BODIES}.items(), ids=str)
def test_each_body_is_described_with_its_fields_types_and_defaults(
    place: Section, body: Body
) -> None:
    assert documented_fields(SECTIONS[place]) == fields_of(body)


def test_no_other_kind_is_described() -> None:
    chapters = {chapter for chapter, _ in KINDS}
    described = {
        place for place in SECTIONS if place[0] in chapters and place[1] and place not in BODIES
    }
    assert described == set(KINDS)


# --- examples


def json_examples(section: str) -> list[bytes]:
    return [body.encode() for body in re.findall(r"```json\n(.*?)\n```", section, flags=re.DOTALL)]


EXAMPLES: dict[Section, Any] = {
    **{place: msgspec.json.Decoder(body) for place, body in KINDS.items()},
    ("gpuq.json", ""): msgspec.json.Decoder(e.LedgerInfo),
    ("Beats", "Beat"): msgspec.json.Decoder(e.Beat),
    ("The journal", "Posted"): msgspec.json.Decoder(e.Page),
    ("Claims", "Claim"): msgspec.json.Decoder(e.Claim),
}


@pytest.mark.parametrize("place", EXAMPLES, ids=str)
def test_each_example_is_a_body_as_the_code_writes_it(place: Section) -> None:
    examples = json_examples(SECTIONS[place])
    assert examples, f"{place} has no example"
    for example in examples:
        written = e.encode(EXAMPLES[place].decode(example))
        assert json.loads(written) == json.loads(example)


def test_every_example_was_looked_at() -> None:
    shown = {place for place, section in SECTIONS.items() if json_examples(section)}
    assert shown <= set(EXAMPLES)


# --- keys

WRITER = WriterName("node1-gpu0~k3f7x2ab")
STAMP_MS = 1_796_058_793_123

KEYS: dict[str, str] = {
    "FactKey": keys.FactKey(stamp_ms=STAMP_MS, writer=WRITER, n=17, kind="submit").format(),
    "BeatKey": keys.BeatKey(stamp_ms=STAMP_MS, writer=WRITER, n=0).format(),
    "page_key": keys.page_key(42),
    "message_key": keys.message_key("node1-gpu0", 3),
    "claim_key": keys.claim_key("q7m2k4x3", 1),
    "blob_key": keys.blob_key("9f" * 32),
    "log_piece_key": keys.log_piece_key("q7m2k4x3", 1, 0),
    "log_key": keys.log_key("q7m2k4x3", 1),
    "checkpoint_key": keys.checkpoint_key(200),
}


def documented_shapes() -> dict[str, re.Pattern[str]]:
    """The first column of the table of keys, each as the pattern that the page describes."""
    grammar = {
        "<hour>": r"\d{8}T\d\d",
        "<stamp>": r"\d{8}T\d{9}Z",
        "<writer>": r"[a-z0-9-]{1,80}~[a-z2-7]{8}",
        "<kind>": "[a-z_]{1,32}",
        "<seq>": r"\d{12}",
        "<worker>": r"[a-z0-9-]+-(gpu|cpu)\d+",
        "<job>": "[a-z2-7]{8}",
        "<attempt>": "[1-9][0-9]*",
        "<sha256>": "[0-9a-f]{64}",
        "<top - seq>": r"\d{12}",
        "<n>": r"\d+",
    }
    table = SECTIONS["Keys", ""].split("| key |")[1].split("\n\n")[0]
    shapes = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    parts = re.findall(r"^\| `(<[^`]+>)`", SECTIONS["Keys", ""], flags=re.MULTILINE)
    assert set(parts) == set(grammar)
    patterns = {}
    for shape in shapes:
        pieces = re.split(r"(<[^>]+>)", shape)
        pattern = "".join(grammar.get(piece, re.escape(piece)) for piece in pieces)
        patterns[shape] = re.compile(pattern)
    return patterns


def test_every_function_that_makes_a_key_is_looked_at() -> None:
    makers = {
        name
        for name, made in vars(keys).items()
        if (name.endswith("_key") and not name.startswith("parse_"))
        or (isinstance(made, type) and hasattr(made, "format"))
    }
    assert makers == set(KEYS)


def test_every_key_has_exactly_one_of_the_documented_shapes() -> None:
    shapes = documented_shapes()
    found = [
        [shape for shape, pattern in shapes.items() if pattern.fullmatch(key)]
        for key in [keys.LEDGER, *KEYS.values()]
    ]
    assert [len(of_one) for of_one in found] == [1] * len(found)
    used = {shape for of_one in found for shape in of_one}
    assert used == set(shapes) - {f"{keys.PROBE}<id>/..."}


@pytest.mark.parametrize(
    "text",
    [
        keys.format_stamp(STAMP_MS),
        str(STAMP_MS),
        keys.page_key(42).removeprefix(keys.JOURNAL),
        keys.checkpoint_key(200).removeprefix(keys.CHECKPOINTS),
    ],
)
def test_examples_of_parts_of_keys_are_right(text: str) -> None:
    assert text in SECTIONS["Keys", ""]


def test_the_job_id_of_a_key_is_that_of_the_document() -> None:
    ledger, organization, key, job = re.search(
        r"In ledger `(\w+)`, organization `(\w+)`, key `([\w-]+)` is job `(\w+)`", FORMAT
    ).groups()  # type: ignore[union-attr]
    assert keyed_job_id(ledger, organization, key) == job


# --- the second reader


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
        pool = policy.Pool(discipline=discipline)
        self.world = World(policy.Policy(pools={"default": pool}))
        self.world.node_up("n1", 2)
        self.world.node_up("n2", 1)
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
            "retry": self.of_a_job(self.world.retry),
            "drain": self.drain,
            "liveness": self.liveness,
            "claim": self.claim,
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
        self.world.finish(job, rc=chance % 2, outcome=outcome, number=1 + chance % len(attempts))

    def stopped(self, job: JobId) -> None:
        self.world.finish(job, rc=143, outcome="stopped")

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
    reserved = {e.JobState.EXPIRED, e.JobState.DEPENDENCY_NEVER}
    assert met >= set(e.JobState) - reserved - {e.JobState.REJECTED}


def test_a_rejected_job_is_read_as_rejected() -> None:
    world = Life("wfq").world
    job = world.submit(slots=9)
    world.turn()
    assert naively(world).jobs[job]["state"] == "REJECTED"


# --- docs/ARCHITECTURE.md

UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20}


def value_of(text: str) -> int:
    """``12.5 s`` in milliseconds, ``256 KiB`` in bytes, ``200`` as it stands."""
    number, _, unit = text.partition(" ")
    return round(float(number) * {**UNITS, **SIZES, "": 1}[unit])


def test_the_defaults_are_those_of_the_code() -> None:
    section = sections(ARCHITECTURE)["Defaults", ""]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.MULTILINE)
    constants = {
        name: value
        for name, value in vars(timings).items()
        if isinstance(value, int) and name.isupper() and not name.endswith("_MS")
    }
    assert {name: value_of(text) for name, text in rows} == {
        **msgspec.structs.asdict(Timings()),
        **constants,
    }


def rule_rows() -> list[tuple[int, str, str]]:
    """Number, modules and tests of each row of the table of rules."""
    section = sections(ARCHITECTURE)["Rules the model forced", ""]
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", section, flags=re.MULTILINE)
    return [(int(number), modules, tests) for number, modules, tests in rows]


def test_every_rule_names_the_modules_that_hold_it() -> None:
    assert [number for number, _, _ in rule_rows()] == list(range(1, 23))
    for _, modules, _ in rule_rows():
        names = re.findall(r"`([\w/.]+\.py)`", modules)
        assert names or modules == "not built yet"
        assert [name for name in names if not (ROOT / name).is_file()] == []


def test_every_test_that_a_rule_names_is_there() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    for _, _, tests in rule_rows():
        names = re.findall(r"`(test_\w+)`", tests)
        assert names or tests == "none yet"
        missing = [name for name in names if not any(f"def {name}(" in s for s in sources)]
        assert missing == []


def test_every_path_that_the_documents_name_is_there() -> None:
    decisions = [path.read_text() for path in (ROOT / "docs" / "decisions").glob("*.md")]
    named = {
        path
        for text in (FORMAT, ARCHITECTURE, *decisions)
        for path in re.findall(
            r"`((?:ledger|scheduling|roles|simulation|tests|docs)/[\w/.]*)`", text
        )
    }
    assert {path for path in named if not (ROOT / path).exists()} == set()
