"""README.md and docs/OPERATING.md, typed as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import typer
from botocore.config import Config
from botocore.exceptions import ClientError

from gpuq.cli import app
from tests.cli.conftest import Gpuq
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import _seaweedfs  # noqa: F401 - a fixture, used by its name
from tests.waiting import wait_until
from tools.fleet import Fleet

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()

DEADLINE_S = 60


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


# --- the first five minutes


class Typed(NamedTuple):
    """One command of a console block, and what the page shows of it."""

    command: str
    shown: str


def typed(block: str) -> list[Typed]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [Typed(*part.split("\n", 1)) for part in parts]


class Shape:
    """Output without what differs from run to run; ids of the page stand for those of the run."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)
        self._names: dict[str, str] = {}

    def learn(self, shown: str, printed: str) -> None:
        """A job that was submitted: its id here and there."""
        for text in (shown, printed):
            match = re.match(r"submitted ([a-z2-7]{8}) (\S+)$", text)
            assert match is not None, text
            self._names[match[1]] = f"<{match[2]}>"

    def of(self, text: str) -> str:
        for job, name in self._names.items():
            text = text.replace(job, name)
        text = text.replace(self._home, "/home/ann")
        for pattern, word in (
            (r"\b\d\d:\d\d:\d\d\b", "CLOCK"),
            (r"\b(\d+\.\d|\d+|\d+m\d\d)s\b", "TIME"),
            (r"\b[0-9a-f]{64}\b", "SHA256"),
            (r"ledger     [a-z2-7]{16} ", "ledger LEDGER "),
            (r"(?m)^(pages|facts|decisions) +\d+$", r"\1 N"),
            (r"\bcpu\d\b", "cpuN"),
        ):
            text = re.sub(pattern, word, text)
        return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Fleet]:
    """A folder with an empty home; what was started in it ends with the test."""
    with Fleet(tmp_path / "readme", "unused") as fleet:
        yield fleet


@pytest.fixture
def ann(machine: Fleet) -> Mapping[str, str]:
    return {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(machine.folder / "home"),
        "LOGNAME": "ann",
        "LANG": "C.UTF-8",
    }


def printed_by(command: str, machine: Fleet, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=machine.work_dir,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


ASKS = re.compile(r"gpuq (status|nodes|replay)\b")
"""Commands that change nothing: asked again until they show what the page shows."""


def test_the_first_five_minutes_go_as_the_readme_shows(
    machine: Fleet, ann: Mapping[str, str]
) -> None:
    first, second = fenced(README, "console")
    shape = Shape(machine.folder / "home")
    (up,) = typed(first)
    said = machine.folder / "up.log"
    with said.open("wb") as log:
        subprocess.Popen(
            ["bash", "-c", f"exec {up.command}"],
            cwd=machine.work_dir, env=ann, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    shows(said.read_text, up.shown, shape)
    for command, shown in typed(second):
        if ASKS.match(command):
            shows(partial(printed_by, command, machine, ann), shown, shape)
            continue
        printed = printed_by(command, machine, ann)
        if command.startswith("gpuq submit"):
            shape.learn(shown, printed)
        assert shape.of(printed) == shape.of(shown), command


def shows(look: Callable[[], str], shown: str, shape: Shape) -> None:
    """Look until the output is as the page shows it."""

    def is_as_shown() -> bool:
        print(printed := look())
        return shape.of(printed) == shape.of(shown)

    wait_until(is_as_shown, deadline_s=DEADLINE_S, what=f"the output\n{shown}")


# --- what is typed elsewhere


def command_lines() -> list[list[str]]:
    """Each call of gpuq in the pages, word by word, up to its ``--``."""
    lines = []
    for text in (README, OPERATING):
        quoted = [line for block in fenced(text, r"\w+") for line in block.splitlines()]
        quoted += re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
        for line in quoted:
            if call := re.search(r"(?:^|[\s(]|ExecStart=\S+/)gpuq ([a-z].*)", line):
                words = re.split(r" -- |[;&>#]|\$\(", call[1])[0].split()
                lines.append(words)
    return lines


def test_every_command_and_option_in_the_pages_exists() -> None:
    lines = command_lines()
    assert len(lines) > 40
    top: Any = typer.main.get_command(app)
    store_options = {option for parameter in top.params for option in parameter.opts}
    for words in lines:
        command = top
        for word in words:
            if not getattr(command, "commands", None):
                break
            assert word in command.commands, " ".join(words)
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known | store_options | {"--help"}, " ".join(words)


def test_every_make_target_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
    assert targets == {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", ["README.md", "docs/OPERATING.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / page).read_text())
    assert links
    for link in links:
        path, _, section = link.partition("#")
        target = (ROOT / page).parent / path
        assert target.exists(), link
        if section:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            assert section in map(anchor, headings), link


def test_the_cost_of_ten_nodes_is_the_sum_of_its_parts() -> None:
    """From the table of docs/PERFORMANCE.md and the prices that both pages state."""
    rows = (ROOT / "docs" / "PERFORMANCE.md").read_text()

    def an_hour(row: str) -> float:
        match = re.search(rf"^\| {row}[^|]*\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", rows, re.M)
        assert match is not None, row
        gets, puts, lists = (int(text.replace(",", "")) for text in match.groups())
        return gets * 0.0004 / 1000 + (puts + lists) * 0.005 / 1000

    follows, leads = an_hour("a node that follows"), an_hour("the node that leads")
    assert f"{follows:.4f}" in OPERATING
    assert f"{leads:.4f}" in OPERATING
    a_month = round((9 * follows + leads) * 730)
    assert f"**{a_month} $ in a month of 730 hours**" in OPERATING
    assert f"**{a_month} $ a month**" in README
    assert f"the one that leads {round(leads * 730)} $" in README


# --- the bucket policies


def bucket_of(server: Server, name: str) -> Any:
    """A client of its owner, and a bucket of that name."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        config=Config(request_checksum_calculation="when_required"),
    )
    client.create_bucket(Bucket=name)
    return client


def test_under_the_policy_without_its_second_statement_the_ledger_works_and_keeps_all(
    seaweedfs: Server, gpuq: Gpuq, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in CREDENTIALS_ENV.items():
        monkeypatch.setenv(name, text)
    rights, create_only = (json.loads(block) for block in fenced(OPERATING, "json"))
    assert "Delete" not in json.dumps(rights)
    statements = {s["Sid"]: s for s in create_only["Statement"]}
    assert statements["NothingIsOverwritten"]["Condition"] == {"Null": {"s3:if-none-match": "true"}}
    create_only["Statement"] = [statements["NothingIsDeleted"]]
    client = bucket_of(seaweedfs, "operated")
    client.put_bucket_policy(
        Bucket="operated", Policy=json.dumps(create_only).replace("BUCKET", "operated")
    )
    there = ["--store", "s3://operated/gpuq", "--endpoint-url", seaweedfs.endpoint_url]
    assert gpuq("init", *there).rc == 0
    assert gpuq("submit", "-q", *there, "--", "true").rc == 0
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(Bucket="operated", Key="gpuq/gpuq.json")
    client.put_object(Bucket="operated", Key="elsewhere", Body=b"")
    client.delete_object(Bucket="operated", Key="elsewhere")
