"""Which store, by whose word; init and doctor; local state; what is imported when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuq.cli import with_global_options_first
from gpuq.config import ConfigFile, StoreFlags, read_config, read_settings, write_config
from ledger.errors import RequestError
from tests.cli.conftest import Gpuq
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import _seaweedfs  # noqa: F401

CONFIG = Path("home/.config/gpuq/config.toml")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / CONFIG


def url_of(environ: Mapping[str, str], **flags: str) -> str:
    return read_settings(StoreFlags(**flags), environ).store.url


def test_a_flag_beats_the_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert url_of(environ) == f"file://{tmp_path}/.local/share/gpuq/ledger"
    write_config(tmp_path / ".config/gpuq/config.toml", ConfigFile(store="s3://file"))
    assert url_of(environ) == "s3://file"
    assert url_of({**environ, "GPUQ_STORE": "s3://variable"}) == "s3://variable"
    assert url_of({**environ, "GPUQ_STORE": "s3://variable"}, store="s3://flag") == "s3://flag"


def test_xdg_folders_are_honoured_and_relative_ones_ignored(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_DATA_HOME": "/data", "XDG_STATE_HOME": "relative"}
    settings = read_settings(StoreFlags(), environ)
    assert settings.store.url == "file:///data/gpuq/ledger"
    assert settings.state_dir == tmp_path / ".local/state/gpuq"
    environ["GPUQ_STATE_DIR"] = "/state"
    assert read_settings(StoreFlags(), environ).state_dir == Path("/state")


def test_how_a_store_is_reached_is_said_in_the_file_for_that_store_alone(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    file = ConfigFile(store="s3://mine", endpoint_url="https://a", region="eu", ca_bundle="/ca")
    write_config(tmp_path / ".config/gpuq/config.toml", file)
    mine = read_settings(StoreFlags(), environ).store
    assert (mine.endpoint_url, mine.region, mine.ca_bundle) == ("https://a", "eu", "/ca")
    other = read_settings(StoreFlags(store="s3://other"), environ).store
    assert (other.endpoint_url, other.region, other.ca_bundle) == (None, None, None)
    environ["AWS_ENDPOINT_URL"] = "https://b"
    assert read_settings(StoreFlags(), environ).store.endpoint_url == "https://b"
    flags = StoreFlags(endpoint_url="https://c")
    assert read_settings(flags, environ).store.endpoint_url == "https://c"


@pytest.mark.parametrize("scale", ["0", "-1", "x", "nan", "1e9"])
def test_a_time_scale_that_is_none_is_an_error(tmp_path: Path, scale: str) -> None:
    with pytest.raises(RequestError, match="GPUQ_TIME_SCALE"):
        read_settings(StoreFlags(), {"HOME": str(tmp_path), "GPUQ_TIME_SCALE": scale})


def test_the_time_scale_divides_every_period(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "GPUQ_TIME_SCALE": "10"}
    timings = read_settings(StoreFlags(), environ).timings
    assert (timings.beat_ms, timings.lease_ms, timings.leader_tick_ms) == (6_000, 3_000, 100)


def test_a_config_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = ConfigFile(store='s3://b/"q"\\', ca_bundle="/ü/🚀/\x7f\n", organization="astro")
    write_config(tmp_path / "sub" / "config.toml", file)
    assert read_config(tmp_path / "sub" / "config.toml") == file


@pytest.mark.parametrize("text", ["store = 1", "stor = 'x'", "store = ", "\udcff"])
def test_a_config_file_that_cannot_be_read_names_itself(
    gpuq: Gpuq, config: Path, text: str
) -> None:
    config.parent.mkdir(parents=True)
    config.write_bytes(text.encode(errors="surrogateescape"))
    result = gpuq("status")
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert str(config) in result.err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["status", "--store", "x"], ["--store", "x", "status"]),
        (["init", "u", "--endpoint-url=e", "-h"], ["--endpoint-url=e", "init", "u", "-h"]),
        (["submit", "--", "a", "--store", "x"], ["submit", "--", "a", "--store", "x"]),
        (["status", "--store"], ["--store", "status"]),
        (
            ["--region=r", "submit", "a", "--store", "x"],
            ["--region=r", "submit", "a", "--store", "x"],
        ),
        (["logs", "submit", "--store", "x"], ["--store", "x", "logs", "submit"]),
    ],
)
def test_options_of_the_store_may_stand_anywhere_before_the_dashes(
    args: list[str], expected: list[str]
) -> None:
    assert with_global_options_first(args) == expected


def test_a_named_store_without_a_ledger_names_init(gpuq: Gpuq, here: Path) -> None:
    result = gpuq("--store", str(here / "new"), "status")
    assert (result.rc, result.out) == (64, "")
    assert result.err == (
        f"gpuq: no ledger at file://{here}/new: make one with 'gpuq init file://{here}/new'\n"
    )


def test_init_makes_a_ledger_once_and_names_it_from_then_on(
    gpuq: Gpuq, here: Path, config: Path
) -> None:
    made = gpuq("init", "./new")
    assert made.out.startswith("made ledger ")
    assert gpuq("status", "--json").json["store"] == f"file://{here}/new"
    again = gpuq("init", "./new")
    assert again.out.split()[:3] == ["adopted", "ledger", made.out.split()[2]]
    config.write_text(config.read_text() + 'organization = "astro"\n')
    other = gpuq("init", str(here / "other"))
    assert f"named {here}/new until now" in other.err
    assert read_config(config).organization == "astro"


def test_a_store_url_that_is_none_shows_the_forms(gpuq: Gpuq) -> None:
    for url in ("bucket/prefix", "https://server/bucket", "s3:///x"):
        result = gpuq("init", url)
        assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
        assert "s3://bucket/prefix" in result.err


def test_doctor_shows_each_check_and_the_clock(gpuq: Gpuq, here: Path) -> None:
    result = gpuq("doctor", "--store", str(here / "s"))
    assert result.rc == 0
    shown = {line.split("  ")[0] for line in result.out.splitlines()[2:-1]}
    assert shown >= {"create once", "one winner", "byte fidelity", "list order", "versioning"}
    assert "this machine's clock is within 1 s of the store's" in result.out
    checks = gpuq("doctor", "--json", "--store", str(here / "s")).json["checks"]
    assert {check["verdict"] for check in checks} == {"ok"}


@pytest.mark.usefixtures("here")
def test_init_on_a_bucket_is_all_that_a_user_must_say(
    gpuq: Gpuq, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    for name, text in CREDENTIALS_ENV.items():
        monkeypatch.setenv(name, text)
    url = f"s3://{seaweedfs.new_bucket()}/team"
    assert gpuq("init", url, "--endpoint-url", seaweedfs.endpoint_url).rc == 0
    (job,) = gpuq("submit", "-q", script).ids
    overview = gpuq("status", "--json").json
    assert (overview["store"], overview["jobs"][0]["id"]) == (url, job)


def test_a_short_command_imports_neither_boto3_nor_nvml_nor_rich(
    here: Path, gpuq_env: Mapping[str, str]
) -> None:
    code = (
        "import sys; from gpuq.__main__ import run; assert run(['status']) == 0;"
        "print(sorted({'boto3', 'botocore', 'pynvml', 'rich', 'psutil'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env=dict(gpuq_env),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == "[]"
