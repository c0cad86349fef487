"""What a job gets is what was typed, and what docs/CLI.md says of its surroundings."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ledger.events import JobState
from ledger.keys import BLOBS
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6

ODD_WORDS = [
    "a,b;c|d&e", "it's", '"quoted" \\back\\slash', "two\nlines\n", "\ttab ", "", "x=1=2", "--name",
    "--store=x", "-h", "--", "$HOME `id` *?[a]", "äöü 日本 🚀 e\u0301 \u202e", "\x01\x7f", "#x",
    "~", "l" * 100_000,
]  # fmt: skip
"""Arguments, and values of variables, that something on the way might take for its own."""

DUMP = """
import json, os, sys
names = [name for name in os.environ if name.startswith("ODD_")]
body = {"argv": sys.argv[2:], "env": {name: os.environ[name] for name in names}}
open(sys.argv[1], "w", encoding="utf-8").write(json.dumps(body))
"""


@pytest.fixture
def cluster(folder_place: Place, folder: Path, start_cluster: StartCluster) -> Cluster:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    return cluster


def test_words_and_variables_reach_the_job_as_they_were_typed(cluster: Cluster) -> None:
    cluster.serve("n1", 1)
    dump = cluster.work_dir / "dump.py"
    dump.write_text(DUMP)
    (cluster.work_dir / "through.sh").write_text(f'exec {sys.executable} dump.py "$@"\n')
    env = {f"ODD_{n}": word for n, word in enumerate(ODD_WORDS)}
    flags = [part for name, value in env.items() for part in ("--env", f"{name}={value}")]
    jobs, outs = [], [cluster.folder / name for name in ("short", "long", "script")]
    jobs += cluster.submit(sys.executable, "dump.py", str(outs[0]), *ODD_WORDS[:-1])
    jobs += cluster.submit(*flags, sys.executable, "dump.py", str(outs[1]), *ODD_WORDS)
    jobs += cluster.submit(*flags, "through.sh", "--", str(outs[2]), *ODD_WORDS)
    cluster.wait_for_end(*jobs)
    assert [cluster.job(job).state for job in jobs] == [JobState.COMPLETED] * 3
    short, long, script = (msgspec.json.decode(out.read_bytes()) for out in outs)
    assert short == {"argv": ODD_WORDS[:-1], "env": {}}
    assert long == script == {"argv": ODD_WORDS, "env": env}
    # Only what is too long for a fact stands apart: the words of two jobs, and one script.
    assert [bool(cluster.job(job).spec.words) for job in jobs] == [False, True, True]
    assert len(list(cluster.bucket.list(BLOBS))) == 3
    assert cluster.verified()["objects"]["blobs"] == 3


@contextmanager
def a_strange_shell() -> Iterator[None]:
    """What the operator's shell has set when he starts the node."""
    umask = os.umask(0o027)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (333, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.umask(umask)


def test_umask_and_limits_are_the_nodes_and_the_directory_is_the_submitters(
    cluster: Cluster,
) -> None:
    with a_strange_shell():
        cluster.serve("n1", 1)
    (cluster.work_dir / "look.sh").write_text(
        "umask; ulimit -n; pwd; readlink /proc/self/fd/0\n"
        "[[ $BASH_VERSION ]] && echo bash\n"  # no #! line
    )
    (cluster.folder / "other").mkdir()
    here, there, nowhere = (
        cluster.submit(*flags, "look.sh")[0]
        for flags in ([], ["--chdir", "../other"], ["--chdir", "/no/such/directory"])
    )
    cluster.wait_for_end(here, there, nowhere)
    lines = ["0027", "333", str(cluster.work_dir), "/dev/null", "bash"]
    assert cluster.logs(here).decode().split() == lines
    lines[2] = str(cluster.folder / "other")
    assert cluster.logs(there).decode().split() == lines
    attempt = cluster.job(nowhere).attempts[0]
    assert (attempt.outcome, attempt.rc) == ("failed_to_start", 126)
    assert "cannot use the working directory /no/such/directory" in attempt.reason
