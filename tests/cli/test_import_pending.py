"""``gpuq import-pending``: the old bucket is taken over, and left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import _seaweedfs  # noqa: F401 - a fixture, used by its name


def layout(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"echo {name}\n")
    return root


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def old(here: Path) -> Path:
    return layout(
        here / "old",
        "a100box/pending/b.sh",
        "a100box/pending/a.sh",
        "a100box/running/r.sh",
        "a100box/pending/notes.txt",
        "n1-cpu0/pending/own.sh",
        "n1-cpu0/done/d.sh",
        "_class-pending/big/any.sh",
    )


MAPS = ("--map", "a100box=n2-cpu0", "--map", "big=h100")


def test_each_script_becomes_a_job_once_and_the_old_folders_stay_as_they_were(
    gpuq: Gpuq, fleet: Fleet, old: Path
) -> None:
    fleet.ready("n1-cpu0")
    fleet.ready("n2-cpu0")
    fleet.ready("n3-cpu0", pool="h100")
    fleet.post()
    before = snapshot(old)
    done = gpuq("import-pending", str(old), *MAPS)
    assert done.rc == 0
    fleet.post()
    jobs = {job.spec.name: job.spec for job in fleet.state.jobs.values()}
    assert {name: (spec.worker, spec.pool, spec.cwd) for name, spec in jobs.items()} == {
        "a.sh": ("n2-cpu0", "default", "/"),
        "b.sh": ("n2-cpu0", "default", "/"),
        "own.sh": ("n1-cpu0", "default", "/"),
        "any.sh": ("", "h100", "/"),
    }
    assert done.out.splitlines() == [
        f"_class-pending/big/any.sh -> pool h100: submitted {jobs['any.sh'].id}",
        f"a100box/pending/a.sh -> n2-cpu0: submitted {jobs['a.sh'].id}",
        f"a100box/pending/b.sh -> n2-cpu0: submitted {jobs['b.sh'].id}",
        f"n1-cpu0/pending/own.sh -> n1-cpu0: submitted {jobs['own.sh'].id}",
    ]
    assert "4 scripts wait in file://" in done.err
    assert "nothing was changed there: end the workers of the shell scripts" in done.err
    assert snapshot(old) == before
    body = fleet.store.get(f"blobs/{jobs['a.sh'].script}")
    assert body == b"echo a100box/pending/a.sh\n"

    again = gpuq("import-pending", str(old), *MAPS)
    assert [line.rpartition(": ")[2] for line in again.out.splitlines()] == [
        f"already imported as {jobs[name].id}" for name in ("any.sh", "a.sh", "b.sh", "own.sh")
    ]
    (old / "a100box/pending/a.sh").write_text("echo other\n")
    third = gpuq("import-pending", str(old), *MAPS)
    assert third.out.count("already imported") == 3
    fleet.post()
    assert len(fleet.state.jobs) == 5


def test_names_that_need_another_one_are_listed_before_anything_is_written(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    old = layout(here / "old", "box/pending/a.sh", "Big_one/pending/b.sh", "n1-gpu0/pending/c.sh")
    done = gpuq("import-pending", str(old))
    assert (done.rc, done.out) == (64, "")
    assert done.err == (
        "gpuq: Big_one, box: no such name can be a worker (NODE-gpuN) or a pool here: say "
        "--map Big_one=NEW for each\n"
    )
    fleet.post()
    assert not fleet.state.jobs


def test_a_dry_run_writes_nothing(gpuq: Gpuq, fleet: Fleet, old: Path) -> None:
    done = gpuq("import-pending", str(old), *MAPS, "--dry-run")
    assert done.rc == 0
    assert done.out.count("would be submitted") == 4
    fleet.post()
    assert not fleet.state.jobs


def test_a_script_that_no_shell_would_run_is_refused_and_the_others_go_on(
    gpuq: Gpuq, fleet: Fleet, old: Path
) -> None:
    (old / "a100box/pending/a.sh").write_bytes(b"echo a\r\n")
    done = gpuq("import-pending", str(old), *MAPS)
    assert done.rc == 64
    assert "a.sh -> n2-cpu0: refused: the lines of a.sh end in CR LF" in done.out
    assert done.out.count(": submitted ") == 3
    assert done.err.endswith("gpuq: 1 of 4 were refused: mend them, then import again\n")


def test_what_is_no_mapping_is_refused(gpuq: Gpuq, fleet: Fleet, old: Path) -> None:
    done = gpuq("import-pending", str(old), "--map", "a100box")
    assert (done.rc, done.err) == (64, "gpuq: --map 'a100box': say --map OLD=NEW\n")


def test_a_bucket_is_taken_over_too(
    gpuq: Gpuq, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in CREDENTIALS_ENV.items():
        monkeypatch.setenv(name, text)
    bucket = seaweedfs.new_bucket()
    admin = seaweedfs.admin()
    for name in ("n1-gpu0/pending/x.sh", "n1-gpu0/done/y.sh"):
        admin.put_object(Bucket=bucket, Key=f"gpuq/{name}", Body=b"echo hello\n")
    assert gpuq("init", f"s3://{bucket}/new", "--endpoint-url", seaweedfs.endpoint_url).rc == 0
    done = gpuq("import-pending", f"s3://{bucket}/gpuq")
    assert done.rc == 0
    (shown,) = gpuq("status", "--json").json["jobs"]
    assert (shown["name"], shown["pinned_to"]) == ("x.sh", "n1-gpu0")
    assert done.out == f"n1-gpu0/pending/x.sh -> n1-gpu0: submitted {shown['id']}\n"
    left = admin.list_objects_v2(Bucket=bucket, Prefix="gpuq/")["Contents"]
    assert len(left) == 2
