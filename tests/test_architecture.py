"""Rules of the house that no linter holds: what is shipped, how long files are, what they say.

Import rules are contracts of import-linter in pyproject.toml, which ``make check`` runs;
here each is shown to catch the import that it forbids.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ("gpuq", "ledger", "roles", "scheduling", "simulation")
FOLDERS = (*PACKAGED, ".ci", "bench", "docs", "tests", "tools")
MAX_LINES = 600

# Each pattern is written so that it does not match itself.
UNFINISHED = re.compile(r"\bTOD[O]\b|\bFIXM[E]\b|\bXX[X]\b")
WORKPLACE = re.compile(r"(?<![\w.~])/wor[k]/|DESIG[N]\.md")


def text_files() -> Iterator[Path]:
    """Every file that a person wrote: code, scripts, pages and settings."""
    tops = [path for path in ROOT.iterdir() if path.is_file()]
    nested = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in tops + nested:
        is_written = path.suffix in {"", ".md", ".py", ".sh", ".toml", ".txt", ".yml"}
        if is_written and path.is_file() and "__pycache__" not in path.parts:
            yield path


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def calls_of_sleep(source: str) -> list[int]:
    """Numbers of the lines that call anything named ``sleep``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr == "sleep")
            or (isinstance(node.func, ast.Name) and node.func.id == "sleep")
        )
    ]


def test_no_file_of_code_is_longer_than_a_reader_bears() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in text_files()
        if path.suffix in {".py", ".sh"}
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_is_left_marked_as_unfinished() -> None:
    assert lines_matching(UNFINISHED) == []


def test_nothing_refers_to_the_place_where_it_was_written() -> None:
    assert lines_matching(WORKPLACE) == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("see /wor" + "k/notes", True),
        ("cp x /wor" + "k/x", True),
        ("mount at /srv/work/x", False),
        ("docs/ARCHITECTURE.md", False),
    ],
)
def test_an_absolute_path_of_the_workplace_is_recognised(line: str, is_refused: bool) -> None:
    assert bool(WORKPLACE.search(line)) == is_refused


def test_tests_sleep_nowhere_but_in_the_helper_that_waits_for_a_condition() -> None:
    sleepers = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := calls_of_sleep(path.read_text()))
    }
    assert list(sleepers) == ["tests/waiting.py"]


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("gpuq_ledger-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = project["project"]["version"]
    metadata = f"gpuq_ledger-{version}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGED, metadata}
    shipped = {
        str(path.relative_to(ROOT))
        for package in PACKAGED
        for suffix in ("py", "toml", "typed")
        for path in (ROOT / package).rglob(f"*.{suffix}")
    }
    wheel_of = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    left_out = {path.removeprefix("/") for path in wheel_of["exclude"]}
    assert left_out < shipped
    assert {name for name in names if not name.startswith(metadata)} == shipped - left_out
    assert f"{metadata}/licenses/LICENSE" in names


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on a copy of the packages that stands at ``tree``."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A copy of the packages and the contracts, to be broken at will."""
    skipped = shutil.ignore_patterns("__pycache__")
    for package in PACKAGED:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_keep_every_contract(packages: Path) -> None:
    verdict = lint_imports(packages)
    assert verdict.returncode == 0, verdict.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("ledger/keys.py", "import scheduling", "Imports point one way"),
        ("scheduling/cost.py", "import roles", "Imports point one way"),
        ("ledger/events.py", "import ledger.projection", "No cycles within a package"),
        ("ledger/stores/base.py", "import boto3", "Only ledger.stores.s3 knows boto3"),
        ("roles/__init__.py", "import botocore.config", "Only ledger.stores.s3 knows boto3"),
        ("gpuq/__init__.py", "import pynvml", "Only roles.devices knows NVML"),
        ("ledger/fair_state.py", "import time", "The pure core reads no clock"),
        ("scheduling/decide.py", "from random import random", "The pure core reads no clock"),
        ("scheduling/cost.py", "import ledger.stores.base", "The pure core reaches no store"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    packages: Path, module: str, line: str, contract: str
) -> None:
    with (packages / module).open("a") as source:
        source.write(f"\n{line}\n")
    verdict = lint_imports(packages)
    assert verdict.returncode == 1, verdict.stdout
    assert re.search(rf"^{re.escape(contract)}.* BROKEN\b", verdict.stdout, re.MULTILINE)
