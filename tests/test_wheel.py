"""What is installed is whole: every module of the wheel can be imported without the group dev."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]

_IMPORT_ALL = """
import importlib, sys
unpacked, modules, missing = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
sys.path.insert(0, unpacked)
sys.modules.update(dict.fromkeys(missing))
for name in modules:
    module = importlib.import_module(name)
    assert module.__file__.startswith(unpacked), module.__file__
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder))
    return Path(built)


def test_every_module_of_the_wheel_can_be_imported_without_the_group_dev(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    modules = sorted(
        str(path.relative_to(tmp_path).with_suffix("")).replace("/", ".")
        for path in tmp_path.rglob("*.py")
    )
    modules = [name.removesuffix(".__init__") for name in modules]
    assert "simulation.engine" in modules

    command = [sys.executable, "-P", "-c", _IMPORT_ALL, str(tmp_path), ",".join(modules)]
    done = subprocess.run(
        [*command, ",".join(_of_developers())], capture_output=True, text=True, cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr


def test_the_search_for_faults_stays_in_the_checkout(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {"simulation/engine.py", "simulation/scenarios/abc.toml"} <= names
    assert not {"simulation/__main__.py", "simulation/faults.py", "simulation/hub.py"} & names


def _of_developers() -> list[str]:
    """The import names of what neither gpuq nor one of its extras brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    brought = {_import_name(line) for lines in extras for line in lines}
    return [
        name
        for name in map(_import_name, project["dependency-groups"]["dev"])
        if name not in brought
    ]


def _import_name(requirement: str) -> str:
    return re.split("[^A-Za-z0-9-]", requirement)[0].replace("-", "_")
