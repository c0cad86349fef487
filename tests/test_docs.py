"""The documents say what the code does.

docs/LEDGER_FORMAT.md: every body with all its fields, every key, every example (that it is
enough to write another reader from: ``tests.test_second_reader``).
docs/ARCHITECTURE.md: the defaults and the table of rules.
"""

from __future__ import annotations

import enum
import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from ledger import (
    artifacts,
    calibration,
    checkpoint,
    daily,
    keys,
    pieces,
    policy,
    rates,
    state,
    timings,
)
from ledger import events as e
from ledger.fair_state import Flow, PoolClock
from ledger.names import WriterName, keyed_job_id
from ledger.timings import Timings

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
    checkpoint.Checkpoint, state.State, state.Job, state.Array, state.Placement, state.Attempt,
    state.ArchivedJob, state.Worker, state.Node, state.NodeHealth, state.FastFailure,
    state.CommandRecord, state.Reservation, Flow, PoolClock,
    policy.Standing, rates.Window, rates.Reserved, daily.Draw, daily.Use, calibration.Calibration,
)  # fmt: skip

FACT_PARTS: tuple[Body, ...] = (
    e.Fact, e.WorkerFact, e.JobSpec, e.Snapshot, e.ArraySpec, e.Dependency, e.Slot, e.Report,
)  # fmt: skip

BODIES: dict[Section, Body] = {
    ("gpuq.json", ""): e.LedgerInfo,
    **{("Facts", body.__name__): body for body in FACT_PARTS},
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
            policy.ClassSlots,
            policy.SizeBuckets,
            policy.LongJobs,
            policy.RetryRule,
            policy.Price,
        )
    },
    **{("Beats", body.__name__): body for body in (e.Beat, e.SlotBeat)},
    **{("The journal", body.__name__): body for body in (e.Page, e.Posted)},
    ("Claims", "Claim"): e.Claim,
    ("Artifacts", "ArtifactManifest"): artifacts.ArtifactManifest,
    ("Artifacts", "ArtifactFile"): artifacts.ArtifactFile,
    ("Artifacts", "Pieces"): pieces.Pieces,
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
    ("Artifacts", "Pieces"): msgspec.json.Decoder(artifacts.ArtifactManifest),
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
    "artifact_key": keys.artifact_key("q7m2k4x3", 1),
    "notice_key": keys.notice_key("q7m2k4x3", STAMP_MS),
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
        "<job>": "[a-z2-7]{8}(_(0|[1-9][0-9]*))?",
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


# --- docs/ARCHITECTURE.md

UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


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
