"""The edge of the command: exit codes, one-line errors, pipes, spools of the killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import pytest

from gpuq.__main__ import run
from ledger import errors
from ledger.clock import SystemClock
from ledger.events import CancelRequested, JobSpec, Submitted
from ledger.journal import read_ledger
from ledger.names import JobId
from ledger.spool import DirectorySpools
from ledger.stores import open_store
from ledger.timings import Timings
from ledger.writer import FactWriter
from tests.cli.conftest import Gpuq

Spawn = Callable[..., subprocess.Popen]


def test_version_is_the_distributions(gpuq: Gpuq) -> None:
    assert gpuq("--version").out == f"gpuq {metadata.version('gpuq-ledger')}\n"


@pytest.mark.parametrize(
    "args",
    [["nosuch"], ["status", "--nosuch"], ["cancel"], ["logs"], ["logs", "-n", "x", "a"],
     ["policy", "nosuch"], ["--store"], ["up", "--slots", "0"], ["up", "--slots", "1", "--gpus",
     "all"], ["up", "--node", "A B"], ["up", "--gpus", "all"], ["up", "--gpus", "0,x"]],
)  # fmt: skip
def test_a_wrong_call_is_one_line_and_64(gpuq: Gpuq, args: list[str]) -> None:
    result = gpuq(*args)
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert result.err.startswith("gpuq: ")


def listed(out: str) -> list[str]:
    """The commands that a help text lists."""
    lines = out.partition("Commands:")[2].partition("\n\n")[0].splitlines()[1:]
    return [line.split()[0] for line in lines]


def leaves(gpuq: Gpuq) -> list[list[str]]:
    """Every command, with its group's name before it."""
    top = listed(gpuq("--help").out)
    groups = {name: listed(gpuq(name, "--help").out) for name in top}
    return [[name, *child] for name in top for child in ([[c] for c in groups[name]] or [[]])]


def test_every_command_has_help_with_an_example_of_itself(gpuq: Gpuq) -> None:
    found = leaves(gpuq)
    assert {"submit", "status", "logs", "wait", "cancel", "nodes", "up", "init"} <= {
        words[0] for words in found
    }
    assert ["policy", "apply"] in found
    assert ["worker"] not in found
    for words in found:
        help_ = gpuq(*words, "--help")
        assert help_.rc == 0
        assert f"    gpuq {' '.join(words)}" in help_.out, words


def test_the_list_of_commands_is_not_cut(gpuq: Gpuq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in gpuq("--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["replay"], "replay needs a command: verify, compare, whatif; see 'gpuq replay --help'"),
        (["policy"], "policy needs a command: apply, check, diff, show; see 'gpuq policy --help'"),
        (["submit", "--name"], "option '--name' requires an argument; see 'gpuq submit --help'"),
        (["wait"], "missing argument 'JOB'; see 'gpuq wait --help'"),
        (["submit", "nope.sh"], "no script nope.sh: correct the name, or put -- before a command: "
         "gpuq submit -- nope.sh ..."),
    ],
)  # fmt: skip
def test_an_error_names_the_mend(gpuq: Gpuq, args: list[str], error: str) -> None:
    assert gpuq(*args).err == f"gpuq: {error}\n"


@pytest.mark.parametrize(
    ("args", "meant"),
    [(["sbumit"], "submit"), (["stauts"], "status"), (["replay", "verfy"], "verify")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    gpuq: Gpuq, args: list[str], meant: str
) -> None:
    result = gpuq(*args)
    assert result.rc == 64
    assert f"did you mean '{meant}'?" in result.err


def test_a_store_that_cannot_be_reached_says_what_to_check(
    gpuq: Gpuq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the long probe of init and doctor, too."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    nowhere = ["--store", "s3://bucket/x", "--endpoint-url", "http://127.0.0.1:9"]
    result = gpuq("status", *nowhere)
    assert (result.rc, result.out, result.err.count("\n")) == (69, "", 1)
    assert "check the address and the network" in result.err
    assert "check the address and the network" in gpuq("init", *nowhere).err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RequestError, 64),
        (errors.LedgerError, 65),
        (errors.UpgradeError, 66),
        (errors.TransientError, 69),
        (errors.InDoubtError, 69),
        (errors.ConflictError, 75),
        (errors.FencedError, 76),
        (KeyboardInterrupt, 130),
    ],
)
@pytest.mark.usefixtures("here")
def test_each_error_has_its_exit_code(
    error: type[BaseException],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object) -> int:
        raise error("what\x1b is wrong")

    monkeypatch.setattr("gpuq.__main__._invoke", fail)
    assert run([]) == code
    shown = capsys.readouterr().err
    assert shown == ("" if error is KeyboardInterrupt else "gpuq: what\\x1b is wrong\n")


def test_a_reader_that_goes_away_is_no_error(
    gpuq: Gpuq, here: Path, gpuq_env: Mapping[str, str]
) -> None:
    for _ in range(3):
        gpuq("submit", "--name", "n" * 30_000, "--", "true")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuq", "status"],
        cwd=here,
        env=dict(gpuq_env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_a_locale_without_the_characters_of_a_name_breaks_nothing(
    gpuq: Gpuq, here: Path, gpuq_env: Mapping[str, str]
) -> None:
    (job,) = gpuq("submit", "-q", "--name", "größe 🚀", "--", "true").ids
    shown = subprocess.run(
        [sys.executable, "-m", "gpuq", "status"],
        cwd=here,
        env={**gpuq_env, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert f"{job}  gr\\xf6\\xdfe \\U0001f680".encode() in shown.stdout


def test_watching_shows_it_again_until_it_is_interrupted(gpuq: Gpuq, spawn: Spawn) -> None:
    gpuq("status")
    watcher = spawn("status", "-w")
    assert watcher.stdout is not None
    frames = 0
    while frames < 2:
        frames += b" running, " in watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=30)
    assert (watcher.returncode, err) == (130, b"")


@pytest.fixture
def killed(gpuq: Gpuq, tmp_path: Path) -> DirectorySpools:
    """The spool of a submit that was killed before it reached the store."""
    gpuq("status")  # makes the ledger
    clock, rng = SystemClock(), random.Random(3)
    root = tmp_path / "home/.local/share/gpuq/ledger"
    store = open_store(str(root), clock=clock, rng=rng)
    ledger = read_ledger(store).ledger
    spools = DirectorySpools(tmp_path / "home/.local/state/gpuq" / ledger / "spools")
    writer = FactWriter(store, rng, Timings(), spools, "cli-here")
    spec = JobSpec(
        id=JobId("aaaaaaaa"), name="left", organization="o", workload_class="batch",
        pool="default", user="u", argv=("true",),
    )  # fmt: skip
    writer.report(Submitted(at=clock.wall_ms(), job=spec))
    writer.report(CancelRequested(at=clock.wall_ms(), job=spec.id, by="u"))
    writer.close()
    return spools


@pytest.mark.usefixtures("killed")
def test_the_next_command_sends_what_a_killed_one_left_and_says_so(gpuq: Gpuq) -> None:
    result = gpuq("status", "--json")
    assert "sent 2 facts that an earlier gpuq (cli-here~" in result.err
    assert [job["id"] for job in result.json["ended"]] == ["aaaaaaaa"]
    assert gpuq("status").err == ""


@pytest.mark.usefixtures("killed")
def test_a_damaged_spool_keeps_no_command_from_its_work(gpuq: Gpuq, tmp_path: Path) -> None:
    (spool,) = (tmp_path / "home/.local/state/gpuq").rglob("*.spool")
    spool.write_bytes(b"garbage\n" + spool.read_bytes())
    result = gpuq("status")
    assert result.rc == 0
    assert "is not sent yet" in result.err
    assert str(spool) in result.err
