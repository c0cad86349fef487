"""Secrets that a runner reads for its job: which files are taken, and what is said of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.roles.attempts import Attempts, finish, log_of


@pytest.fixture
def secrets_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    return folder


def put_secret(folder: Path, name: str, value: bytes, mode: int = 0o600) -> Path:
    (folder / name).write_bytes(value)
    (folder / name).chmod(mode)
    return folder / name


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"hunter2\n", b"hunter2"),
        (b"two\nlines\n\n", b"two\nlines\n"),
        (b"\xff", b"\xff"),
        (b"", b""),
    ],
)
def test_a_secret_is_what_its_file_holds_without_the_last_line_end(
    attempts: Attempts, secrets_dir: Path, body: bytes, value: bytes
) -> None:
    put_secret(secrets_dir, "S", body)
    job = attempts.start(
        *("bash", "-c", 'printf "<%s>" "$S"'), secrets=("S",), secrets_dir=str(secrets_dir)
    )
    finish(job)
    assert log_of(job) == b"<" + value + b">"
    assert b"hunter2" not in (job.path / "plan.json").read_bytes()


def test_a_secret_that_is_not_there_names_the_file_that_is_wanted(
    attempts: Attempts, secrets_dir: Path
) -> None:
    result = attempts.run("true", secrets=("S",), secrets_dir=str(secrets_dir))
    assert (result.outcome, result.rc) == ("failed_to_start", 126)
    wanted = f"its operator puts it into {secrets_dir}/S, mode 0600"
    assert result.reason == f"this node has no secret S: {wanted}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_secret_that_others_can_read_is_not_taken(
    attempts: Attempts, secrets_dir: Path, mode: int
) -> None:
    path = put_secret(secrets_dir, "S", b"x", mode)
    result = attempts.run("true", secrets=("S",), secrets_dir=str(secrets_dir))
    assert (result.outcome, result.rc) == ("failed_to_start", 126)
    assert result.reason == f"the secret {path} can be read by others: chmod 600 it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user_is_not_taken(attempts: Attempts, secrets_dir: Path) -> None:
    os.chown(put_secret(secrets_dir, "S", b"x"), 65_534, -1)
    result = attempts.run("true", secrets=("S",), secrets_dir=str(secrets_dir))
    assert "belongs to another user: chown it" in result.reason


def test_what_is_no_secret_file_is_not_taken(attempts: Attempts, secrets_dir: Path) -> None:
    outside = put_secret(secrets_dir.parent, "OUTSIDE", b"x")
    (secrets_dir / "LINK").symlink_to(outside)
    os.mkfifo(secrets_dir / "FIFO", 0o600)
    (secrets_dir / "FOLDER").mkdir(0o700)
    put_secret(secrets_dir, "LARGE", b"x" * 65_537)
    put_secret(secrets_dir, "NUL", b"a\0b")
    says = {
        "../OUTSIDE": "'../OUTSIDE' is no name of a secret",
        "LINK": "it must be a file, mode 0600",
        "FIFO": "is no file",
        "FOLDER": "is no file",
        "LARGE": "is larger than 64 KiB",
        "NUL": "has a NUL byte",
    }
    for name, reason in says.items():
        result = attempts.run("true", secrets=(name,), secrets_dir=str(secrets_dir))
        assert (result.outcome, name, reason in result.reason) == ("failed_to_start", name, True)
