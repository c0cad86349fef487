"""Scenario files: streams of jobs on given slots, written by hand in TOML.

Owns the grammar, which the files in ``simulation/scenarios`` show, and those files, each known
by its name. Nothing is random: a stream sends ``count`` jobs at ``first`` and every ``every``
after it, until ``last`` or the end of the scenario. A time is a number with a unit: ``500ms``,
``90s``, ``15m``, ``1h``. Streams queue in the order of the file where jobs arrive at once.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from ledger.errors import RequestError
from ledger.policy import Policy
from scheduling.policy_file import parse_policy
from simulation.workload import POOL, Presence, Question, SimJob, Workload, node, organization_name

_FOLDER = Path(__file__).parent / "scenarios"

_TIME = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Stream(msgspec.Struct, forbid_unknown_fields=True, rename={"workload_class": "class"}):
    organization: str
    duration: str
    every: str
    first: str = "0s"
    last: str = ""
    count: int = 1
    workload_class: str = "batch"
    pool: str = POOL
    slots: int = 1
    gpu_type: str = ""
    worker: str = ""
    estimate: str = ""
    """Else exactly the duration."""
    limit: str = ""


class _Node(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    name: str
    slots: int
    pool: str = POOL
    gpu: str = ""
    from_: str = "0s"
    until: str = ""


class _Scenario(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    until: str
    streams: list[_Stream]
    slots: int = 0
    """A node of so many slots; or ``nodes``."""
    nodes: list[_Node] = []
    policy: str = ""
    """The text of a policy file."""
    questions: list[Question] = []


def scenario_names() -> list[str]:
    """The scenarios that gpuq brings with it."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def named_scenario(name: str) -> Workload:
    """One of ``scenario_names``."""
    return parse_scenario((_FOLDER / f"{name}.toml").read_text("utf-8"), source=name)


def parse_scenario(text: str, *, source: str) -> Workload:
    """The workload that ``text`` describes; RequestError, one line, where it cannot be read."""
    try:
        scenario = msgspec.convert(tomllib.loads(text), _Scenario)
        return _workload(scenario, source)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise RequestError(f"{source}: {error}") from error


def _workload(scenario: _Scenario, source: str) -> Workload:
    until_ms = _time_ms(scenario.until)
    jobs = [job for stream in scenario.streams for job in _jobs(stream, until_ms)]
    if bool(scenario.slots) == bool(scenario.nodes):
        raise ValueError("say either 'slots' or 'nodes'")
    slots = node("node1", scenario.slots) if scenario.slots else ()
    for described in scenario.nodes:
        slots += _slots(described)
    policy = Policy()
    if scenario.policy:
        policy = parse_policy(scenario.policy, source=f"policy of {source}")
    for stream in scenario.streams:
        if stream.workload_class not in policy.classes:
            known = ", ".join(policy.classes)
            raise ValueError(f"no class {stream.workload_class!r}; classes are {known}")
    return Workload(
        title=scenario.title,
        jobs=tuple(sorted(jobs, key=lambda job: job.arrival_ms)),
        slots=slots,
        policy=policy,
        until_ms=until_ms,
        questions=tuple(scenario.questions),
    )


def _slots(described: _Node) -> tuple[Presence, ...]:
    return node(
        described.name,
        described.slots,
        pool=described.pool,
        kind="gpu" if described.gpu else "cpu",
        gpu_name=described.gpu,
        from_ms=_time_ms(described.from_),
        until_ms=_time_ms(described.until) if described.until else None,
    )


def _jobs(stream: _Stream, until_ms: int) -> list[SimJob]:
    every_ms, first_ms = _time_ms(stream.every), _time_ms(stream.first)
    last_ms = min(until_ms, _time_ms(stream.last)) if stream.last else until_ms
    duration_ms = _time_ms(stream.duration)
    if min(every_ms, duration_ms, stream.count, stream.slots) < 1:
        raise ValueError(f"stream of {stream.organization}: times, count and slots begin at 1")
    return [
        SimJob(
            name=stream.organization,
            organization=organization_name(stream.organization),
            workload_class=stream.workload_class,
            pool=stream.pool,
            arrival_ms=at,
            duration_ms=duration_ms,
            slots=stream.slots,
            gpu_type=stream.gpu_type,
            worker=stream.worker,
            estimate_ms=_time_ms(stream.estimate) if stream.estimate else duration_ms,
            time_limit_ms=_time_ms(stream.limit) if stream.limit else 0,
        )
        for at in range(first_ms, last_ms, every_ms)
        for _ in range(stream.count)
    ]


def _time_ms(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: say 500ms, 90s, 15m, 1h or 2d")
    return int(match[1]) * _UNITS_MS[match[2]]
