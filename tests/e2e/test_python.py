"""``import gpuq``: programs of a user, run as he runs them, against a node of real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ledger.events import JobState
from ledger.names import JobId
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


@pytest.fixture
def cluster(folder_place: Place, folder: Path, start_cluster: StartCluster) -> Cluster:
    """One node with one slot, so that a second job waits."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    return cluster


def start_program(cluster: Cluster, source: str) -> subprocess.Popen[str]:
    program = cluster.work_dir / "program.py"
    program.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, program.name],
        cwd=cluster.work_dir,
        env={**cluster.user_env, "GPUQ_STORE": cluster.store},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(cluster: Cluster, source: str) -> list[str]:
    """The lines that a program printed; it must end well and say nothing else."""
    out, err = start_program(cluster, source).communicate(timeout=120)
    assert err == ""
    return out.splitlines()


def test_jobs_are_submitted_waited_for_read_and_cancelled(cluster: Cluster) -> None:
    cluster.script("hello.sh", 'echo "hello $1"')
    cluster.script("bad.sh", "echo oh", rc=3)
    cluster.script("long.sh", cluster.gate("never"))
    lines = run_program(
        cluster,
        """
        import gpuq

        hello = gpuq.submit("hello.sh", "a b", name="greeting", time="5m")
        print(hello.wait(), hello.result(), hello.logs())
        print(gpuq.Queue().job("greeting").id == hello.id)
        command = gpuq.submit(["printf", "%s|", "x", "y z"], env={"A": "1"})
        print(command.name, command.result())

        bad = gpuq.submit("bad.sh")
        try:
            bad.result()
        except gpuq.JobFailedError as error:
            print(str(error).replace(bad.id, "ID"), error.state, error.rc)

        long = gpuq.submit("long.sh")
        try:
            long.wait(timeout=0)
        except TimeoutError as error:
            print("not yet")
        long.cancel()
        print(long.wait())

        try:
            gpuq.submit("hello.sh", gpu=2)
        except gpuq.RequestError as error:
            print(error)
        try:
            gpuq.submit("no.sh")
        except gpuq.GpuqError as error:
            print(str(error).partition(":")[0], error.exit_code)

        print(gpuq.submit(lambda a, b=0: a - b, 44, kwargs={"b": 2}, name="answer").result())
        print(gpuq.Queue().job("answer").result())
        """,
    )
    assert lines == [
        r"COMPLETED b'hello a b\n' b'hello a b\n'",
        "True",
        "printf b'x|y z|'",
        "ID (bad.sh) ended as FAILED, rc=3; see 'gpuq logs ID' FAILED 3",
        "not yet",
        "CANCELLED",
        "'gpu' is no option of a job: did you mean 'gpus'?",
        "no script no.sh 64",
        "42",
        "42",
    ]


def test_an_executor_calls_functions_and_brings_back_values_and_exceptions(
    cluster: Cluster,
) -> None:
    lines = run_program(
        cluster,
        """
        import os
        import gpuq

        class OwnError(Exception):
            pass

        def power(base, exponent):
            print("computing", base)
            return base**exponent

        def fail():
            raise OwnError("no data")

        def leave():
            os._exit(0)

        with gpuq.Executor(time="10m", env={"WHO": "ann"}) as executor:
            one = executor.submit(power, 3, exponent=2)
            print(one.result(), one.job.name, one.job.logs().splitlines()[0])
            print(list(executor.map(power, [1, 2, 3], [2, 2, 2], chunksize=2)))
            print(executor.submit(os.getenv, "WHO").result())
            failed = executor.submit(fail)
            error = failed.exception()
            print(repr(error), type(error) is OwnError)
            print("in fail" in str(error.__cause__), failed.job.state)
            try:
                executor.submit(leave).result()
            except gpuq.JobFailedError as error:
                print(str(error).partition("; see")[0].partition(" ")[2])
        try:
            executor.submit(power, 1, 1)
        except RuntimeError as error:
            print(error)
        """,
    )
    assert lines == [
        "9 power b'computing 3'",
        "[1, 4, 9]",
        "ann",
        "OwnError('no data') True",
        "True FAILED",
        "(leave) ended as COMPLETED, rc=0: it told no result",
        "cannot schedule new futures after shutdown",
    ]


def test_a_call_that_waits_can_be_cancelled_and_one_that_runs_goes_on(cluster: Cluster) -> None:
    lines = run_program(
        cluster,
        f"""
        import os
        import time
        from concurrent.futures import CancelledError
        from pathlib import Path

        import gpuq

        def hold(gate):
            Path(gate + ".begun").touch()
            while not os.path.exists(gate):
                time.sleep(0.05)
            return "held"

        executor = gpuq.Executor()
        running = executor.submit(hold, "{cluster.folder}/first")
        while not os.path.exists("{cluster.folder}/first.begun"):
            time.sleep(0.05)
        while not running.running():
            time.sleep(0.05)
        waiting, later = executor.submit(hold, "never"), executor.submit(hold, "never")
        print(waiting.cancel(), waiting.cancelled(), running.cancel(), running.running())
        try:
            waiting.result()
        except CancelledError:
            print("cancelled", waiting.job.state)
        try:
            running.result(timeout=0.01)
        except TimeoutError:
            print("not yet")
        executor.shutdown(wait=False, cancel_futures=True)
        Path("{cluster.folder}/first").touch()
        executor.shutdown()
        print(running.result(), later.cancelled())
        """,
    )
    assert lines == [
        "True True False True",
        "cancelled CANCELLED",
        "not yet",
        "held True",
    ]


def test_python_ends_when_all_futures_are_done_as_with_every_executor(cluster: Cluster) -> None:
    lines = run_program(
        cluster,
        """
        import gpuq

        future = gpuq.Executor().submit(sum, [1, 2])
        future.add_done_callback(lambda future: print("done", future.result()))
        print("the end of the program")
        """,
    )
    assert lines == ["the end of the program", "done 3"]


def test_a_node_whose_python_cannot_make_the_call_says_so(cluster: Cluster) -> None:
    bare = cluster.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    (line,) = run_program(
        cluster,
        f"""
        import gpuq

        try:
            gpuq.submit(sum, [1], python="{bare}", name="total").result()
        except gpuq.RequestError as error:
            print(error)
        """,
    )
    assert line.endswith(
        " has no cloudpickle: install it there; or name another Python with python="
    )
    (job,) = cluster.state().jobs.values()
    assert (job.state, JobId(job.id), job.spec.name) == (JobState.FAILED, job.id, "total")
