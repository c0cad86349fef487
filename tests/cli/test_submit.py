"""``gpuq submit``: what is taken, what is refused with which mend, what is written when."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from ledger.keys import BLOBS, FACTS
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


def facts_in(home: Path) -> list[str]:
    """Kinds of the facts in the default folder."""
    folder = home / ".local" / "share" / "gpuq" / "ledger" / FACTS
    return sorted(path.name.rpartition(".")[2] for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_script_becomes_a_job_named_after_its_file(
    gpuq: Gpuq, fleet: Fleet, script: str, home: Path, here: Path
) -> None:
    result = gpuq("submit", script)
    job = result.out.split()[1]
    assert result.out == f"submitted {job} hello.sh\n"
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    assert (spec.name, spec.cwd, spec.env, spec.slots) == ("hello.sh", str(here), {}, 1)
    assert fleet.store.get(f"{BLOBS}{spec.script}") == (here / script).read_bytes()


def test_several_scripts_become_several_jobs(gpuq: Gpuq, here: Path, home: Path) -> None:
    for name in ("a.sh", "b.sh", "c.sh"):
        (here / name).write_text(f"echo {name}\n")
    result = gpuq("submit", "-q", "a.sh", "b.sh", "c.sh")
    assert len(set(result.ids)) == 3
    assert facts_in(home) == ["submit"] * 3


def test_everything_behind_the_dashes_is_the_command(gpuq: Gpuq, fleet: Fleet) -> None:
    command = ("python3", "train.py", "--lr", "1e-3", "--", "--store", "-q")
    (job,) = gpuq("submit", "-q", "--name", "train", "--", *command).ids
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    assert (spec.name, spec.argv, spec.script) == ("train", command, "")


SCRIPTS = {"a.sh": "echo a\n", "b.sh": "echo b\n", "c": "#!/bin/sh\necho c\n", "data.txt": "1\n"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # scripts, and nothing else: each is a job
        (["a.sh"], [("a.sh", True, ())]),
        (["a.sh", "b.sh", "c"], [("a.sh", True, ()), ("b.sh", True, ()), ("c", True, ())]),
        (["./a.sh"], [("a.sh", True, ())]),
        # one script, and what is no script: its arguments
        (["a.sh", "1", "b.sh"], [("a.sh", True, ("1", "b.sh"))]),
        (["a.sh", "data.txt"], [("a.sh", True, ("data.txt",))]),
        (["a.sh", "-G", "2", "--", "-h"], [("a.sh", True, ("-G", "2", "--", "-h"))]),
        (["data.txt", "x"], [("data.txt", True, ("x",))]),
        # behind -- always arguments
        (["a.sh", "--", "b.sh"], [("a.sh", True, ("b.sh",))]),
        (["a.sh", "--", "--", "-q"], [("a.sh", True, ("--", "-q"))]),
        (["a.sh", "b.sh", "--"], [("a.sh", True, ()), ("b.sh", True, ())]),
        # a first word that is no file is a command, and all behind it is its own
        (
            ["python3", "t.py", "--name", "x", "--json", "-h"],
            [("python3", False, ("python3", "t.py", "--name", "x", "--json", "-h"))],
        ),
        (
            ["env", "--", "a.sh", "--store", "s"],
            [("env", False, ("env", "--", "a.sh", "--store", "s"))],
        ),
        ([sys.executable, "a.sh"], [(Path(sys.executable).name, False, (sys.executable, "a.sh"))]),
        # a first word behind -- is a command even where it is a file
        (["--", "a.sh", "1"], [("a.sh", False, ("a.sh", "1"))]),
        (["--", "--", "x"], [("--", False, ("--", "x"))]),
    ],
)
def test_which_words_are_scripts_arguments_and_commands(
    gpuq: Gpuq,
    fleet: Fleet,
    here: Path,
    words: list[str],
    expected: list[tuple[str, bool, tuple[str, ...]]],
) -> None:
    for name, text in SCRIPTS.items():
        (here / name).write_text(text)
    jobs = gpuq("submit", "-q", *words).ids
    fleet.post()
    specs = [fleet.state.jobs[JobId(job)].spec for job in jobs]
    assert [(spec.name, bool(spec.script), spec.argv) for spec in specs] == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a.sh", "b.sh", "x"], "b.sh is a script, x is none: put -- before the arguments of a.sh"),
        (["a.sh", "b.sh", "typo.sh"], "b.sh is a script, typo.sh is none"),
        (["a.sh", "b.sh", "--", "x"], "2 scripts before -- and arguments behind it"),
    ],
)
def test_words_that_may_be_meant_in_two_ways_are_refused(
    gpuq: Gpuq, here: Path, home: Path, words: list[str], says: str
) -> None:
    for name, text in SCRIPTS.items():
        (here / name).write_text(text)
    result = gpuq("submit", *words)
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert says in result.err
    assert facts_in(home) == []


def test_a_script_may_come_from_a_pipe_and_a_pipe_behind_it_is_left_alone(
    gpuq: Gpuq, fleet: Fleet, script: str
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"echo from a pipe\n")
    os.close(writer)
    path = f"/dev/fd/{reader}"
    assert gpuq("submit", "-n", script, path).out.count("checked") == 1
    (job,) = gpuq("submit", "-q", path, "x").ids
    os.close(reader)
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    assert fleet.store.get(f"{BLOBS}{spec.script}") == b"echo from a pipe\n"
    assert spec.argv == ("x",)


def test_options_of_gpuq_behind_the_first_word_are_told(gpuq: Gpuq, script: str) -> None:
    told = "-G, --time=2h behind hello.sh goes to the job: gpuq's own options stand before it"
    assert told in gpuq("submit", script, "-G", "2", "--time=2h", "--lr").err
    assert gpuq("submit", script, "--", "-G", "2").err == ""
    assert gpuq("submit", script, "--lr", "2").err == ""


def test_a_program_that_is_not_here_is_told(gpuq: Gpuq) -> None:
    result = gpuq("submit", "no-such-program", "x")
    assert result.rc == 0
    assert "'no-such-program' is no file here and no program here" in result.err


def test_the_store_is_named_before_the_words(gpuq: Gpuq, here: Path, script: str) -> None:
    gpuq("init", str(here / "other"))
    for args in (["--store", "./other", "submit"], ["submit", "--store=./other", "-q"]):
        assert gpuq(*args, script).rc == 0
    assert len(gpuq("status", "--json", "--store", "./other").json["jobs"]) == 2
    assert "no ledger at" in gpuq("--store", "./other", "submit", "--store", "./none", script).err


def test_a_long_command_is_a_blob_of_its_own(gpuq: Gpuq, fleet: Fleet) -> None:
    args = ("submit", "-q", "--key", "k", "--env", "A=1", "--", "a", "b" * 20_000)
    (job,) = gpuq(*args).ids
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    body = b'{"argv":["a","' + b"b" * 20_000 + b'"],"env":{"A":"1"}}'
    assert (spec.name, spec.argv, spec.env, spec.words) == ("a", (), {}, sha256(body).hexdigest())
    assert fleet.store.get(f"{BLOBS}{spec.words}") == body
    assert gpuq(*args).ids == [job]
    assert "differs in words" in gpuq(*args, "c").err
    assert gpuq("status", "--json", job).json["words_sha256"] == spec.words


def test_a_command_is_named_after_its_program(gpuq: Gpuq) -> None:
    assert gpuq("submit", "--", "/usr/bin/env", "true").out.split()[2] == "env"


def test_what_stands_behind_one_script_and_the_dashes_are_its_arguments(
    gpuq: Gpuq, fleet: Fleet, script: str
) -> None:
    (job,) = gpuq("submit", "-q", script, "--", "--lr", "1").ids
    fleet.post()
    spec = fleet.state.jobs[JobId(job)].spec
    assert (bool(spec.script), spec.argv) == (True, ("--lr", "1"))


def test_flags_arrive_in_the_ledger(gpuq: Gpuq, fleet: Fleet, script: str, here: Path) -> None:
    result = gpuq(
        "submit", "-q", "-J", "n", "-p", "h100", "--org", "astro", "--class", "interactive",
        "-G", "H100:2", "--gpu-mem", "40G", "-t", "1h30m", "--estimate", "10", "--grace", "5s",
        "--env", "A=1", "--chdir", "sub", "--hold", "--idempotent", "--exclusive",
        "--worker", "n1-gpu0", script,
    )  # fmt: skip
    assert result.err.splitlines()[0] == "time limit 1 h 30 min"
    fleet.post()
    spec = fleet.state.jobs[JobId(result.ids[0])].spec
    assert (spec.name, spec.flow) == ("n", "astro/interactive/h100")
    assert (spec.slots, spec.gpu_type, spec.gpu_memory_bytes) == (2, "h100", 40_000_000_000)
    assert (spec.time_limit_ms, spec.estimate_ms, spec.grace_ms) == (5_400_000, 600_000, 5_000)
    assert (spec.env, spec.cwd) == ({"A": "1"}, str(here / "sub"))
    assert (spec.held, spec.idempotent, spec.exclusive) == (True, True, True)
    assert spec.worker == "n1-gpu0"


def test_the_environment_does_not_travel(
    gpuq: Gpuq, fleet: Fleet, script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "hunter2hunter2")
    gpuq("submit", script)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"hunter2hunter2" in path.read_bytes()] == []


def test_a_variable_travels_by_name_with_its_value_here(
    gpuq: Gpuq, fleet: Fleet, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEED", "a=b,c\n")
    monkeypatch.setenv("MODE", "fast")
    (here / "gpuq.toml").write_text('env = ["MODE", "SEED=0"]\n')
    (job,) = gpuq("submit", "-q", "--env", "SEED", "--", "true").ids
    fleet.post()
    assert fleet.state.jobs[JobId(job)].spec.env == {"MODE": "fast", "SEED": "a=b,c\n"}


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True), ("GITHUB_TOKEN", True), ("token", True), ("WANDB_API_KEY", True),
        ("OPENAI_APIKEY", True), ("KEY", True), ("DB_PASSWORD", True), ("PGPASSWORD", True),
        ("MYSQL_PASSWD", True), ("CLIENT_SECRET_OLD", True), ("SSH_PASSPHRASE", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True), ("AWS_ACCESS_KEY_ID", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("AWS_SESSION_TOKEN", True),
        ("AWS_REGION", False), ("AWS_ENDPOINT_URL", False), ("MAX_TOKENS", False),
        ("TOKENIZERS_PARALLELISM", False), ("MONKEY", False), ("KEYMAP", False), ("SEED", False),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_refused_as_a_value(
    gpuq: Gpuq, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_secret: bool
) -> None:
    monkeypatch.setenv(name, "hunter2")
    for pair in (name, f"{name}=hunter2"):
        result = gpuq("submit", "-n", "--env", pair, "--", "true")
        assert result.rc == (64 if is_secret else 0)
        assert "hunter2" not in result.err
        assert (f"say --secret {name}" in result.err) == is_secret


def test_a_secret_is_a_name_in_the_ledger(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "gpuq.toml").write_text('secret = ["HF_TOKEN"]\n')
    (job,) = gpuq("submit", "-q", "--secret", "DB_PASSWORD", "--", "true").ids
    fleet.post()
    assert fleet.state.jobs[JobId(job)].spec.secrets == ("HF_TOKEN", "DB_PASSWORD")
    shown = gpuq("status", "--json", job).json
    assert (shown["secrets"], shown["variables"]) == (["HF_TOKEN", "DB_PASSWORD"], {})


def test_the_same_key_is_the_same_job(gpuq: Gpuq, fleet: Fleet, script: str, home: Path) -> None:
    first = gpuq("submit", "--key", "sweep-1", script)
    again = gpuq("submit", "--key", "sweep-1", script)
    assert first.out.split()[:2] == ["submitted", again.out.split()[2]]
    assert again.out.startswith("already submitted ")
    fleet.post()
    after = gpuq("submit", "-q", "--key", "sweep-1", script)
    assert after.ids == [first.out.split()[1]]
    assert facts_in(home) == ["submit"]


def test_the_same_key_for_another_body_is_refused(gpuq: Gpuq, script: str, home: Path) -> None:
    gpuq("submit", "--key", "k", script)
    result = gpuq("submit", "--key", "k", "-G", "2", script)
    assert (result.rc, result.out) == (64, "")
    assert "differs in slots: use another key" in result.err
    assert facts_in(home) == ["submit"]


def test_one_key_for_several_scripts_is_refused(gpuq: Gpuq, script: str, home: Path) -> None:
    result = gpuq("submit", "--key", "k", script, script)
    assert (result.rc, facts_in(home)) == (64, [])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"echo a\r\necho b\r\n", "end in CR LF: save it with Unix line ends"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark: save it as UTF-8 without BOM"),
        (b"\xff\xfee\0c\0h\0o\0", "byte order mark"),
        (b"\x7fELF\0\0\0", "is a binary: put -- before it"),
        (b"#" * (4 * 1024 * 1024 + 1), "larger than 4 MiB"),
    ],
)
def test_a_script_that_no_shell_would_run_is_refused(
    gpuq: Gpuq, here: Path, home: Path, content: bytes, says: str
) -> None:
    (here / "bad.sh").write_bytes(content)
    result = gpuq("submit", "bad.sh")
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert says in result.err
    assert facts_in(home) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nofile.sh"], "no script nofile.sh: correct the name, or put -- before a command"),
        (["."], "is a folder"),
        ([], "nothing to submit: name a script or a command"),
        (["--"], "nothing to submit"),
        ([""], "the command is empty: name a program"),
        (["/no/such/program", "x"], "or put -- before a command"),
        (["-t", "soon", "--", "true"], "'soon' is not a time: say minutes"),
        (["-G", "0", "--", "true"], "a job takes 1 to 1024 slots"),
        (["--gpu-mem", "40", "--", "true"], "'40' is not a size"),
        (["--worker", "x", "--", "true"], "'x' is not a worker: say NODE-gpuN"),
        (["--org", "A B", "--", "true"], "organization 'A B' is not a name"),
        (["--class", "h100", "--", "true"], "if it is a pool, say --pool h100"),
        (["--env", "A-B=1", "--", "true"], "--env 'A-B' is not a variable"),
        (["--env", "NOT_HERE", "--", "true"], "--env NOT_HERE: it is not set here"),
        (["--secret", "S=1", "--", "true"], "--secret S takes no value"),
        (["--secret", "S", "--env", "S=1", "--", "true"], "S: say --env or --secret, not both"),
        (["--key"], "requires an argument"),
        (["--", "a", "b" * 131_072], "at most 131071 in an argument or variable: put it into"),
        (["--env", f"A={'b' * 131_070}", "--", "a"], "put it into a file"),
        (["--", *["b" * 100_000] * 11], "at most 1048576 are safe to execute: put them into a"),
    ],
)
def test_a_mistake_is_one_line_with_the_mend_and_writes_nothing(
    gpuq: Gpuq, home: Path, args: list[str], says: str
) -> None:
    result = gpuq("submit", *args)
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    assert says in result.err
    assert result.err.startswith("gpuq: ")
    assert facts_in(home) == []


def test_a_class_that_the_policy_defines_may_be_asked_for(
    gpuq: Gpuq, fleet: Fleet, tmp_path: Path
) -> None:
    policy = tmp_path / "team.toml"
    policy.write_text("[classes.nightly]\nweight = 0.5\n")
    assert gpuq("policy", "apply", str(policy)).rc == 0
    fleet.post()
    assert gpuq("submit", "--class", "nightly", "--", "true").rc == 0
    refused = gpuq("submit", "--class", "nightli", "--", "true")
    assert refused.rc == 64
    assert (
        "'nightli' is no class (a class is one of batch, interactive, nightly, system; did you "
        "mean 'nightly'?)"
    ) in refused.err


def test_a_class_that_is_a_pool_or_a_gpu_is_told_so(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-gpu0", pool="big", gpu="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984)
    fleet.post()
    assert (
        "'big' is a pool, no class: say --pool big"
        in gpuq("submit", "--class", "big", "--", "true").err
    )
    assert (
        "'h100' is a kind of GPU, no class: say --gpus h100:1"
        in gpuq("submit", "--class", "h100", "--", "true").err
    )


def test_what_no_gpu_of_the_pool_has_is_refused_before_anything_is_written(
    gpuq: Gpuq, fleet: Fleet, home: Path, script: str
) -> None:
    fleet.ready("n1-gpu0", gpu="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984)
    fleet.post()
    before = facts_in(home)
    for wish in (["--gpu-mem", "200G"], ["-G", "a100:1"], ["-G", "2"]):
        result = gpuq("submit", *wish, script)
        assert (result.rc, result.out) == (64, "")
    assert facts_in(home) == before
    assert not (home / ".local/share/gpuq/ledger" / BLOBS).exists()
    assert gpuq("submit", "--gpu-mem", "80G", "-G", "h100:1", script).rc == 0


def test_a_pin_implies_the_workers_pool(gpuq: Gpuq, fleet: Fleet, script: str, here: Path) -> None:
    fleet.ready("n1-gpu0", pool="big")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--worker", "n1-gpu0", script).ids
    fleet.post()
    assert fleet.state.jobs[JobId(job)].spec.pool == "big"
    (here / "gpuq.toml").write_text('worker = "n1-gpu0"\n')
    rows = [line.split() for line in gpuq("submit", "-n", "--explain", script).err.splitlines()]
    assert ["pool", "big", "gpuq.toml"] in rows


def test_a_pool_that_nobody_serves_is_told_on_stderr(gpuq: Gpuq, fleet: Fleet, script: str) -> None:
    fleet.ready("n1-gpu0", pool="big")
    fleet.post()
    result = gpuq("submit", script)
    assert result.rc == 0
    assert "no worker serves pool 'default' now; there is big" in result.err


def test_a_dry_run_checks_and_writes_nothing(gpuq: Gpuq, script: str, home: Path) -> None:
    result = gpuq("submit", "-n", "--explain", "--org", "astro", script)
    assert result.out.startswith("checked ")
    rows = [line.split() for line in result.err.splitlines()]
    assert ["org", "astro", "--org"] in rows
    assert ["class", "batch", "default"] in rows
    assert facts_in(home) == []
    assert gpuq("status", "last").rc == 64


def test_a_dry_run_leaves_the_store_as_it_is(
    gpuq: Gpuq, fleet: Fleet, script: str, home: Path
) -> None:
    fleet.ready("n1-gpu0")
    fleet.post()
    root = home / ".local/share/gpuq/ledger"
    before = {path for path in root.rglob("*") if path.is_file()}
    assert gpuq("submit", "-n", "--key", "k", script).rc == 0
    assert {path for path in root.rglob("*") if path.is_file()} == before
    assert gpuq("submit", script).rc == 0
    assert {path for path in root.rglob("*") if path.is_file()} > before


def test_the_organization_is_flag_then_variable_then_user(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQ_USER", "Jane.Doe@laptop")
    first = gpuq("submit", "-q", "--", "true").ids[0]
    monkeypatch.setenv("GPUQ_ORG", "bio")
    second = gpuq("submit", "-q", "--", "true").ids[0]
    third = gpuq("submit", "-q", "--org", "astro", "--", "true").ids[0]
    fleet.post()
    specs = [fleet.state.jobs[JobId(job)].spec for job in (first, second, third)]
    assert [spec.organization for spec in specs] == ["jane-doe", "bio", "astro"]
    assert {spec.user for spec in specs} == {"Jane.Doe@laptop"}


def test_json_names_every_job(gpuq: Gpuq, script: str) -> None:
    (job,) = gpuq("submit", "--json", "-t", "2d", script).json
    assert job["outcome"] == "submitted"
    assert (job["name"], job["class"], job["time_limit_ms"]) == ("hello.sh", "batch", 172_800_000)


def test_a_name_that_is_not_utf8_is_refused(gpuq: Gpuq) -> None:
    result = gpuq("submit", "--name", os.fsdecode(b"\xff"), "--", "true")
    assert (result.rc, result.err.count("\n")) == (64, 1)
    assert "name is not UTF-8" in result.err


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/a/b?c=d", "https://h.example.com/"])
def test_a_url_to_notify_stands_in_the_spec(
    gpuq: Gpuq, fleet: Fleet, script: str, url: str
) -> None:
    (job,) = gpuq("submit", "-q", "--notify", url, script).ids
    fleet.post()
    assert fleet.state.jobs[JobId(job)].spec.notify == url


@pytest.mark.parametrize("text", ["mail me", "h/x", "ftp://h/x", "http://", "http://u:p@h/", "h t"])
def test_what_is_no_url_to_notify_is_refused_with_the_mend(
    gpuq: Gpuq, fleet: Fleet, script: str, text: str
) -> None:
    done = gpuq("submit", "--notify", text, script)
    assert done.rc == 64
    assert done.err == (
        f"gpuq: {text!r} is no URL: say https://HOST/PATH (for a command: gpuq wait JOB; COMMAND)\n"
    )
