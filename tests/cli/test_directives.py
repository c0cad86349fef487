"""Lines at the top of scripts, and the project file: what is read, believed and refused.

What ``#SBATCH`` lines mean is from sbatch's manual.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuq.sbatch import translated
from ledger.errors import RequestError
from ledger.events import JobSpec
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.cli.test_submit import facts_in


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def spec_of(gpuq: Gpuq, fleet: Fleet, *args: str) -> JobSpec:
    result = gpuq("submit", "-q", *args)
    assert result.rc == 0, result.err
    fleet.post()
    return fleet.state.jobs[JobId(result.ids[0])].spec


def explained(gpuq: Gpuq, *args: str) -> dict[str, tuple[str, str]]:
    """Value and source by name."""
    result = gpuq("submit", "-n", "--explain", *args)
    assert result.rc == 0, result.err
    lines = [line.split("  ") for line in result.err.splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    return {row[0]: (row[1], row[2]) for row in cells if len(row) == 3}


def test_lines_at_the_top_of_a_script_are_options(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "t.sh").write_text(
        "#!/bin/bash\n"
        "#GPUQ--gpus h100:2\t--time 4h\n"
        "##GPUQ --gpus 8\n"
        "#GPUQS --gpus 8\n"
        "#GPUQ\n"
        "# other comments and empty lines are passed over\n"
        "\n"
        "#GPUQ -J train --idempotent   # why not\n"
        "#GPUQ --env 'A=x y#z' --env=B='#1'\n"
        "echo\n"
    )
    spec = spec_of(gpuq, fleet, "t.sh")
    assert (spec.slots, spec.gpu_type, spec.time_limit_ms) == (2, "h100", 4 * 3_600_000)
    assert (spec.name, spec.idempotent) == ("train", True)
    assert spec.env == {"A": "x y#z", "B": "#1"}


def test_each_script_has_its_own(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "a.sh").write_text("#GPUQ --name one\necho\n")
    (here / "b.sh").write_text("#GPUQ --name two --key k\necho\n")
    ids = gpuq("submit", "-q", "a.sh", "b.sh").ids
    fleet.post()
    assert [fleet.state.jobs[JobId(job)].spec.name for job in ids] == ["one", "two"]


def test_flag_then_variable_then_directive_then_project_then_default(
    gpuq: Gpuq, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "t.sh").write_text("#!/bin/sh\n")
    assert explained(gpuq, "t.sh")["pool"] == ("default", "default")
    (here / "gpuq.toml").write_text('pool = "e"\n')
    assert explained(gpuq, "t.sh")["pool"] == ("e", "gpuq.toml")
    (here / "t.sh").write_text("#!/bin/sh\n#SBATCH --job-name=x\n#GPUQ --pool d\n")
    assert explained(gpuq, "t.sh")["pool"] == ("d", "t.sh line 3")
    monkeypatch.setenv("GPUQ_POOL", "v")
    assert explained(gpuq, "t.sh")["pool"] == ("v", "GPUQ_POOL")
    assert explained(gpuq, "--pool", "f", "t.sh")["pool"] == ("f", "--pool")


def test_the_users_own_file_comes_after_the_project(gpuq: Gpuq, here: Path, home: Path) -> None:
    config = home / ".config/gpuq/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('organization = "mine"\n')
    assert explained(gpuq, "--", "true")["org"] == ("mine", str(config))
    (here / "gpuq.toml").write_text('org = "ours"\n')
    assert explained(gpuq, "--", "true")["org"] == ("ours", "gpuq.toml")


def test_a_project_file_has_the_options_as_keys(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "gpuq.toml").write_text(
        'gpus = 2\ngpu-mem = "40G"\ntime = 90\nhold = true\nidempotent = true\n'
        'deadline = 2031-01-01T00:00:00Z\nretry-on = "oom,rc=75"\nretries = 3\n'
        '[env]\nA = "x=y"\nB = 1\n'
    )
    spec = spec_of(gpuq, fleet, "--no-idempotent", "--env", "B=2", "--", "true")
    assert (spec.slots, spec.gpu_memory_bytes, spec.time_limit_ms) == (2, 40_000_000_000, 5_400_000)
    assert (spec.held, spec.idempotent, spec.env) == (True, False, {"A": "x=y", "B": "2"})
    # date -u -d 2031-01-01 +%s
    assert spec.deadline_at == 1_924_992_000_000
    assert (spec.retries, spec.retry_on) == (3, ("oom", "rc=75"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu = 2", "gpuq.toml: there is no option 'gpu': did you mean 'gpus'?"),
        ("gpus = true", "gpuq.toml: gpus is a string or a number"),
        ("hold = 1", "gpuq.toml: hold is true or false"),
        ('time = "soon"', "gpuq.toml: 'soon' is not a time: say minutes"),
        ("gpus = ", "gpuq.toml: Invalid value"),
        ("json = true", "gpuq.toml: there is no option 'json'"),
    ],
)
def test_a_project_file_that_is_wrong_names_itself_and_the_key(
    gpuq: Gpuq, here: Path, home: Path, text: str, says: str
) -> None:
    (here / "gpuq.toml").write_text(text)
    result = gpuq("submit", "--", "true")
    assert (result.rc, result.err.count("\n"), facts_in(home)) == (64, 1, [])
    assert says in result.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("#GPUQ --time soon", "'soon' is not a time: say minutes"),
        ("#GPUQ --tiem 4h", "no such option: --tiem"),
        ("#GPUQ --time", "option '--time' requires an argument; see 'gpuq submit --help'"),
        ("#GPUQ time=4h", "'time=4h' is not an option of a job: leave it out"),
        ("#GPUQ: long jobs", "':' is not an option of a job"),
        ("#GPUQ --json", "--json is not an option of a job: leave it out"),
        ("#GPUQ --store x", "--store is not an option of a job: leave it out"),
        ("#GPUQ --env 'A=1", "no closing quotation: mend its quotes"),
        ("#GPUQ --name \udcff", "is not UTF-8: save the script as UTF-8"),
        ("#SBATCH --time=soon", "'soon' is not a time: say minutes"),
        ("#SBATCH --job-name", "--job-name needs a value"),
    ],
)
def test_a_bad_line_names_file_line_and_mend(
    gpuq: Gpuq, here: Path, home: Path, line: str, says: str
) -> None:
    text = f"#!/bin/sh\n{line}\ntrue\n"
    (here / "t.sh").write_bytes(text.encode(errors="surrogateescape"))
    result = gpuq("submit", "t.sh")
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert result.err.startswith("gpuq: t.sh line 2")
    assert says in result.err
    assert facts_in(home) == []


def test_a_line_behind_the_first_command_is_told_not_read(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    (here / "t.sh").write_text("true\n#GPUQ --gpus 2\n#SBATCH --gpus 2\n")
    result = gpuq("submit", "-q", "t.sh")
    fleet.post()
    assert fleet.state.jobs[JobId(result.ids[0])].spec.slots == 1
    assert result.err.splitlines() == [
        "t.sh line 2: #GPUQ is not read behind the first command: move it up",
        "t.sh line 3: #SBATCH is not read behind the first command: move it up",
    ]


def test_sbatch_lines_are_read_and_count_less_than_own_ones(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    (here / "t.sh").write_text(
        "#!/bin/bash\n"
        "#GPUQ --gpus 4\n"
        "#SBATCH --job-name=train --time=1-0:30\n"
        "#SBATCH --gres=gpu:a100:2\n"
        "#SBATCH --partition=gpu --mem 32G\n"
        "#SBATCH -c4\n"
        "#SBATCH -o out/%j.txt\n"
    )
    result = gpuq("submit", "-q", "t.sh")
    assert result.err.splitlines() == [
        "t.sh line 7: -o out/%j.txt has no effect: what a job writes is in 'gpuq logs JOB'",
        "t.sh: gpuq has no word for #SBATCH --partition=gpu, --mem 32G, -c4",
        "time limit 1 d 30 min",
    ]
    fleet.post()
    spec = fleet.state.jobs[JobId(result.ids[0])].spec
    assert (spec.name, spec.time_limit_ms) == ("train", 88_200_000)
    assert (spec.slots, spec.gpu_type) == (4, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-J", "a b"], ["--name=a b"]),
        (["-Ja"], ["--name=a"]),
        (["-t", "10:00"], ["--time=10:00"]),
        (["--time", "10"], ["--time=10"]),
        (["--time=UNLIMITED"], []),
        (["-t0"], []),
        (["--gres=gpu"], ["--gpus=1"]),
        (["--gres=gpu:2"], ["--gpus=2"]),
        (["--gres", "gpu:h100"], ["--gpus=h100:1"]),
        (["--gres=gpu:h100:8"], ["--gpus=h100:8"]),
        (["-G", "a100:2"], ["--gpus=a100:2"]),
        (["--gpus-per-node=2"], ["--gpus=2"]),
        (["-a", "0-99%10"], ["--array=0-99%10"]),
        (["--dependency=afterok:12:13"], ["--after=afterok:12:13"]),
        (["-d", "singleton", "-J", "x"], ["--after=singleton", "--name=x"]),
        (["--signal=B:USR1@60", "-D", "/data"], ["--signal=B:USR1@60", "--chdir=/data"]),
    ],
)
def test_words_of_sbatch_in_those_of_gpuq(words: list[str], expected: list[str]) -> None:
    assert translated("t.sh line 2", words) == (expected, [], [])


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        (["--gres=gpu:2,nvme:1"], ["--gres=gpu:2,nvme:1"]),
        (["--requeue", "-N", "2", "--ntasks=4"], ["--requeue", "-N 2", "--ntasks=4"]),
        (["--mail-type=END", "word"], ["--mail-type=END", "word"]),
    ],
)
def test_what_gpuq_has_no_word_for_is_named(words: list[str], left_out: list[str]) -> None:
    assert translated("t.sh line 2", words) == ([], left_out, [])


def test_an_option_without_its_value_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^t.sh line 2: --array needs a value"):
        translated("t.sh line 2", ["--array", "--time=1"])
