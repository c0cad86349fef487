"""``gpuq submit --snapshot``: which files travel, what is recorded, and what is refused."""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from gpuq import snapshot as module
from ledger.archive import Manifest, unpack
from ledger.clock import SystemClock
from ledger.keys import BLOBS
from ledger.pieces import get_blob, get_pieces
from ledger.stores import open_store
from ledger.stores.base import Store
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

GIT_ENV = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip


@pytest.fixture
def project(here: Path) -> Path:
    """A folder with a script in it, which is the current one."""
    (here / "run.sh").write_text("#!/bin/sh\n")
    return here


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env={**os.environ, **GIT_ENV},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip()


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def unpacked(store: Store, manifest_sha256: str, target: Path) -> list[str]:
    """The names in a snapshot, unpacked below ``target``."""
    manifest = msgspec.json.decode(get_blob(store, manifest_sha256), type=Manifest)
    unpack(io.BytesIO(b"".join(get_pieces(store, manifest.archive))), target, manifest)
    found = [path for path in target.rglob("*") if path.is_symlink() or path.is_file()]
    return sorted(str(path.relative_to(target)) for path in found)


def names_of(gpuq: Gpuq, fleet: Fleet, target: Path, directory: str = ".") -> list[str]:
    """What ``--snapshot`` takes of a folder."""
    result = gpuq("submit", "-q", "--snapshot", directory, "--", "true")
    assert result.rc == 0, result.err
    fleet.post()
    shown = gpuq("status", "--json", result.ids[0]).json
    return unpacked(fleet.store, shown["snapshot"]["manifest_sha256"], target)


def test_ignore_files_are_respected_in_every_folder(
    gpuq: Gpuq, fleet: Fleet, project: Path, tmp_path: Path
) -> None:
    write(
        project,
        {
            ".gitignore": "*.pt\n/data/\nbuild\n/weights/\n",
            ".gpuqignore": "*.log\n!kept.pt\n!/weights/\n",
            "weights/w": "",
            "weights/a.log": "",
            "sub/.gitignore": "!best.pt\n/local.txt\n",
            "sub/.gpuqignore": "!train.log\n",
            "model.pt": "", "kept.pt": "", "data/x": "", "sub/data/x": "", "a.log": "",
            "sub/best.pt": "", "sub/other.pt": "", "sub/local.txt": "", "local.txt": "",
            "sub/train.log": "", "sub/build/x": "", "build.txt": "", ".env": "",
        },
    )  # fmt: skip
    assert names_of(gpuq, fleet, tmp_path / "out") == [
        ".env", ".gitignore", ".gpuqignore", "build.txt", "kept.pt", "local.txt", "run.sh",
        "sub/.gitignore", "sub/.gpuqignore", "sub/best.pt", "sub/data/x", "sub/train.log",
        "weights/w",
    ]  # fmt: skip


def test_of_a_checkout_all_that_git_knows_or_would_add_travels(
    gpuq: Gpuq, fleet: Fleet, project: Path, tmp_path: Path
) -> None:
    git(project, "init", "-q", "-b", "trunk")
    write(
        project,
        {
            ".gitignore": "/out/\n*.bin\n",
            "pkg/committed": "old", "pkg/removed": "", "out/tracked": "", "out/other": "",
            "pkg/huge.dat": "",
        },
    )  # fmt: skip
    git(project, "add", "-f", "pkg", "out/tracked", "run.sh")
    git(project, "commit", "-q", "-m", "one")
    (project / "pkg" / "removed").unlink()
    write(
        project,
        {
            "pkg/committed": "new", "pkg/staged": "", "pkg/untracked": "", "pkg/x.bin": "",
            "pkg/.gpuqignore": "huge.dat\n",
        },
    )  # fmt: skip
    git(project, "add", "pkg/staged")
    target = tmp_path / "out"
    assert names_of(gpuq, fleet, target) == [
        ".gitignore", "out/tracked", "pkg/.gpuqignore", "pkg/committed", "pkg/staged",
        "pkg/untracked", "run.sh",
    ]  # fmt: skip
    assert (target / "pkg" / "committed").read_text() == "new"
    # The rules of the folders above hold for a part of the checkout too.
    assert names_of(gpuq, fleet, tmp_path / "part", "pkg") == [
        ".gpuqignore", "committed", "staged", "untracked",
    ]  # fmt: skip


def test_modes_links_and_odd_names_are_kept_and_sockets_are_not(
    gpuq: Gpuq, fleet: Fleet, project: Path, tmp_path: Path
) -> None:
    odd = os.fsdecode(b"\xff \n'*")
    (project / odd).write_text("odd")
    (project / "run.sh").chmod(0o750)
    (project / "link").symlink_to(odd)
    (project / "dangling").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        target = tmp_path / "out"
        assert names_of(gpuq, fleet, target) == sorted([odd, "dangling", "link", "run.sh"])
    assert (target / "link").read_text() == "odd"
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o750


def test_the_same_tree_is_stored_once_and_a_dry_run_stores_nothing(
    gpuq: Gpuq, fleet: Fleet, project: Path
) -> None:
    assert gpuq("submit", "-n", "--snapshot", ".", "--", "true").rc == 0
    assert list(fleet.store.list(BLOBS)) == []
    gpuq("submit", "--snapshot", ".", "--", "true")
    blobs = [entry.key for entry in fleet.store.list(BLOBS)]
    assert len(blobs) == 2, "the archive and its manifest"
    os.utime(project / "run.sh", (1, 1))
    gpuq("submit", "--snapshot", ".", "--", "false")
    assert [entry.key for entry in fleet.store.list(BLOBS)] == blobs


def test_commit_branch_and_changes_are_told_by_status_and_receipt(
    gpuq: Gpuq, fleet: Fleet, project: Path
) -> None:
    git(project, "init", "-q", "-b", "trunk")
    git(project, "add", "run.sh")
    git(project, "commit", "-q", "-m", "one")
    commit = git(project, "rev-parse", "HEAD")
    told = []
    for name in ("clean", "dirty"):
        gpuq("submit", "--name", name, "--snapshot", ".", "--", "true")
        fleet.post()
        shown = gpuq("status", "--json", name).json["snapshot"]
        assert shown == gpuq("audit", "job", name, "--json").json["snapshot"]
        told.append((shown["commit"], shown["branch"], shown["dirty"]))
        (project / "new").touch()
    assert told == [(commit, "trunk", False), (commit, "trunk", True)]
    for words in (("status", "dirty"), ("audit", "job", "dirty")):
        assert f"{commit} on trunk, with changes" in gpuq(*words).out
    git(project, "checkout", "-q", "--detach")
    gpuq("submit", "--name", "detached", "--snapshot", ".", "--", "true")
    fleet.post()
    assert gpuq("status", "--json", "detached").json["snapshot"]["branch"] is None


def test_a_folder_that_is_no_checkout_has_no_commit(
    gpuq: Gpuq, fleet: Fleet, project: Path
) -> None:
    result = gpuq("submit", "-q", "--snapshot", ".", "--", "true")
    assert result.err == ""
    fleet.post()
    shown = gpuq("status", "--json", "last").json["snapshot"]
    assert (shown["commit"], shown["branch"], shown["dirty"]) == (None, None, False)
    assert "commit" not in gpuq("status", "last").out


def test_it_begins_in_the_same_place_of_the_copy(
    gpuq: Gpuq, fleet: Fleet, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"src/main.py": "", ".gpuqignore": "/scratch/\n", "scratch/x": ""})

    def begins(*words: str) -> str:
        gpuq("submit", *words, "--", "true")
        fleet.post()
        told: str = gpuq("status", "--json", "last").json["snapshot"]["directory"]
        return told

    assert begins("--snapshot", ".") == ""
    assert begins("--snapshot", ".", "--chdir", "src") == "src"
    assert begins("--snapshot", "src") == "", "the current folder is not in the snapshot"
    monkeypatch.chdir(project / "src")
    assert begins("--snapshot", "..") == "src"
    monkeypatch.chdir(project / "scratch")
    refused = gpuq("submit", "--snapshot", "..", "--", "true")
    assert refused.rc == 64
    assert "would begin in scratch, which is not in the snapshot" in refused.err


def test_too_much_is_refused_with_the_largest_folders_and_the_line_to_add(
    gpuq: Gpuq, fleet: Fleet, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_MAX_BYTES", 4096)
    sizes = {"data/raw/a": 3000, "data/b": 100, "w/x": 500, "w/y/z": 400, "top": 600, "v/1": 90}
    sizes |= {"u/1": 80, "t/1": 70, "s/1": 60}
    write(project, {name: "x" * of_name for name, of_name in sizes.items()})
    (project / "run.sh").unlink()
    refused = gpuq("submit", "--snapshot", ".", "--", "true")
    assert refused.rc == 64
    # By hand: w holds 900 and its largest folder 400; data is more than half data/raw.
    assert refused.err.strip().endswith(
        "the snapshot would have 4.79 KiB, at most 4 KiB are taken. Largest: data/raw/ 2.93 KiB, "
        "w/ 900 B, top 600 B, w/y/ 400 B, v/ 90 B. Leave one out with a line in "
        f"{project}/.gpuqignore: /data/raw/"
    )
    (project / ".gpuqignore").write_text("/data/raw/\n")
    assert gpuq("submit", "--snapshot", ".", "--", "true").rc == 0


@pytest.mark.parametrize("target", ["/etc", "../elsewhere"])
def test_a_link_out_of_the_tree_is_refused_with_the_mend(
    gpuq: Gpuq, fleet: Fleet, project: Path, target: str
) -> None:
    (project / "data").symlink_to(target)
    refused = gpuq("submit", "--snapshot", ".", "--", "true")
    assert refused.rc == 64
    assert f"data is a link to {target}, out of the snapshot" in refused.err
    assert "the line /data in .gpuqignore" in refused.err
    (project / ".gpuqignore").write_text("/data\n")
    assert gpuq("submit", "--snapshot", ".", "--", "true").rc == 0


def test_a_script_is_no_folder(gpuq: Gpuq, project: Path) -> None:
    refused = gpuq("submit", "--snapshot", "run.sh")
    assert refused.rc == 64
    assert "--snapshot run.sh: no such folder; name one: --snapshot . SCRIPT" in refused.err


def test_another_tree_under_a_key_is_another_job(gpuq: Gpuq, fleet: Fleet, project: Path) -> None:
    words = ("submit", "--key", "k", "--snapshot", ".", "--", "true")
    assert gpuq(*words).rc == 0
    fleet.post()
    assert gpuq(*words).out.startswith("already submitted")
    (project / "run.sh").write_text("changed")
    refused = gpuq(*words)
    assert refused.rc == 64
    assert "differs in snapshot" in refused.err


KILLED_AFTER_A_PIECE = """
import os, signal, sys
from gpuq.__main__ import run
from ledger.stores.directory import DirectoryStore
create = DirectoryStore._create
def create_and_die(self, key, body, sender):
    done = create(self, key, body, sender)
    if key.startswith("blobs/"):
        os.kill(os.getpid(), signal.SIGKILL)
    return done
DirectoryStore._create = create_and_die
run(sys.argv[1:])
"""


def test_an_upload_that_is_killed_leaves_nothing_that_counts(
    gpuq: Gpuq, gpuq_env: Mapping[str, str], project: Path, tmp_path: Path
) -> None:
    """Ten MiB that do not shrink: two pieces, of which the first goes up before the kill."""
    gpuq("status")  # makes the ledger
    (project / "noise").write_bytes(random.Random(1).randbytes(10 << 20))
    words = ("submit", "-q", "--snapshot", ".", "--", "true")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_A_PIECE, *words],
        cwd=project,
        env=dict(gpuq_env),
        capture_output=True,
        check=False,
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"")
    root = tmp_path / "home" / ".local" / "share" / "gpuq" / "ledger"
    store = open_store(str(root), clock=SystemClock(), rng=random.Random())
    assert [entry.size for entry in store.list(BLOBS)] == [8 << 20]
    assert list(store.list("facts/")) == []
    assert gpuq(*words).rc == 0
    sizes = sorted(entry.size for entry in store.list(BLOBS))
    assert len(sizes) == 3
    assert sizes[-1] == 8 << 20
