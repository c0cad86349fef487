"""What a job is given: its environment above all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ledger import events as e
from ledger.names import JobId, Seq, WorkerName
from roles.context import Context
from roles.jobplan import JobBase, plan_of, safe_env, visible_devices
from roles.launcher import Plan
from simulation.memory import ManualClock, MemoryStore
from tests.roles.worker_rig import TIMINGS, Disk, Effects, FakeAttempt

BASE = {"PATH": "/bin", "HOME": "/root"}


def plan(
    slots: tuple[str, ...] = ("n1-gpu3",), base: dict[str, str] | None = None, **spec: Any
) -> Plan:
    clock = ManualClock(wall_ms=1_800_000_000_000, boot_ms=1_000)
    context = Context(
        store=MemoryStore(clock),
        ledger="test",
        clock=clock,
        rng=random.Random(1),
        timings=TIMINGS,
        state_dir=Path("/fake"),
        host="host1",
        machine="m1",
    )
    job = e.JobSpec(
        id=JobId("aaaaaaaa"),
        name="job",
        organization="a",
        workload_class="batch",
        pool="default",
        user="u",
        **{"argv": ("true",), **spec},
    )
    message = e.RunMessage(
        ledger="test",
        worker=WorkerName(slots[0]),
        n=0,
        seq=Seq(1),
        job=job,
        attempt=2,
        slots=tuple(map(WorkerName, slots)),
    )
    handle = FakeAttempt(Disk(clock, Effects()), "aaaaaaaa.2")
    env = BASE if base is None else base
    job_base = JobBase(boot_id="b", env=env, secrets_dir=Path("/etc/secrets"))
    return plan_of(context, message, handle, None, job_base, 29_500)


def test_the_environment_of_a_gpu_job() -> None:
    assert plan().env == {
        "PATH": "/bin",
        "HOME": "/root",
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUQ_JOB_ID": "aaaaaaaa",
        "GPUQ_ATTEMPT": "2",
        "GPUQ_REPORT": "/fake/aaaaaaaa.2/report",
    }


def test_the_users_own_variables_come_on_top_but_do_not_choose_gpus() -> None:
    env = plan(
        env={
            "PATH": "/opt",
            "PYTHONUNBUFFERED": "",
            "MASTER_PORT": "1",
            "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        }
    ).env
    assert (env["PATH"], env["PYTHONUNBUFFERED"], env["MASTER_PORT"]) == ("/opt", "", "1")
    assert env["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.parametrize(
    ("slots", "devices"),
    [
        (("n1-cpu0",), ""),
        (("n1-gpu0",), "0"),
        (("n1-gpu10", "n1-gpu2", "n1-gpu0"), "0,2,10"),
        (("my-gpu1-gpu7",), "7"),
    ],
)
def test_a_job_sees_the_gpus_of_all_its_slots_and_no_other(
    slots: tuple[str, ...], devices: str
) -> None:
    assert visible_devices(tuple(map(WorkerName, slots)), {}) == devices


def test_mig_instances_are_named_by_the_uuids_that_cuda_knows_them_by() -> None:
    slots = (WorkerName("n1-gpu201"), WorkerName("n1-gpu100"))
    uuids = {100: "MIG-aa", 101: "MIG-bb", 201: "MIG-cc"}
    assert visible_devices(slots, uuids) == "MIG-aa,MIG-cc"


def test_no_credential_of_the_worker_reaches_a_job() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "CUDA_HOME": "/usr/local/cuda",
        "AWS_ACCESS_KEY_ID": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "GPUQ_STORE": "s3://b",
        "HF_TOKEN": "s",
        "NVIDIA_API_KEY": "s",
        "WANDB_API_KEY": "s",
        "https_proxy": "http://user:s@proxy",
        "SSH_AUTH_SOCK": "/tmp/agent",
    }
    assert safe_env(environ) == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "CUDA_HOME": "/usr/local/cuda",
    }


def test_secrets_are_named_with_their_place_and_not_read() -> None:
    asked = plan(secrets=("HF_TOKEN", "DB_PASSWORD"))
    assert (asked.secrets, asked.secrets_dir) == (("HF_TOKEN", "DB_PASSWORD"), "/etc/secrets")
    assert not {"HF_TOKEN", "DB_PASSWORD"} & asked.env.keys()


def test_without_a_directory_it_begins_at_home() -> None:
    assert plan().cwd == "/root"
    assert plan(base={}).cwd == "/"
    assert plan(cwd="/data").cwd == "/data"


def test_times_are_the_jobs_own_or_the_defaults() -> None:
    asked = plan(time_limit_ms=5, grace_ms=7, exclusive=True)
    assert (asked.time_limit_ms, asked.grace_ms, asked.exclusive_ms) == (5, 7, 480_000)
    silent = plan()
    assert (silent.time_limit_ms, silent.grace_ms, silent.exclusive_ms) == (None, 30_000, None)
    assert silent.claim_boot_ms == 1_000
    assert silent.claim_boot_ms + silent.epoch_offset_ms == 1_800_000_000_000


def test_the_signal_before_the_time_limit_is_the_one_asked_for() -> None:
    asked = plan(time_limit_ms=9, signal="USR1", lead_ms=3)
    assert (asked.signal, asked.lead_ms) == ("USR1", 3)
    assert (plan().signal, plan().lead_ms) == ("TERM", 0)
    assert (plan(lead_ms=3).signal, plan(lead_ms=3).lead_ms) == ("TERM", 3)
