"""What a job is started with: its command, directory and environment.

Owns the variables that gpuq gives to a job, and which of the worker's own variables it may
see: a short list in which no credential has a place. What the user set for the job comes
on top, and above that only what decides which GPUs it has and where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledger.events import JobSpec, RunMessage
from ledger.names import WORKER, WorkerName, token
from ledger.variables import looks_secret
from roles.context import Context
from roles.launcher import JobHandle, Plan, script_argv

_SAFE = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TERM",
     "TMPDIR", "TZ", "USER"}
)  # fmt: skip
_SAFE_PREFIXES = ("LC_", "CUDA_", "NCCL_", "NVIDIA_")

_TOKEN_CHARACTERS = 26


@dataclass(frozen=True, kw_only=True)
class JobBase:
    """What all jobs of a worker are started with; ``env`` is what ``safe_env`` leaves."""

    boot_id: str
    env: Mapping[str, str]
    secrets_dir: Path
    """Where the node's operator puts secrets."""
    mig_uuids: Mapping[int, str] = field(default_factory=dict)
    """By index, the uuids of the node's MIG instances."""


def safe_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job may see of the worker's own environment."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _SAFE or name.startswith(_SAFE_PREFIXES)) and not looks_secret(name)
    }


def plan_of(
    context: Context,
    message: RunMessage,
    handle: JobHandle,
    script: bytes | None,
    base: JobBase,
    free_port: int,
) -> Plan:
    """The plan of an attempt whose claim is about to be put for the first time."""
    spec, timings = message.job, context.timings
    boot_ms = context.clock.boot_ms()
    epoch_offset_ms = context.store.clock_ms() - boot_ms
    env = {"MASTER_PORT": str(free_port), **_environment(message, handle, base)}
    return Plan(
        job=spec.id,
        attempt=message.attempt,
        slots=message.slots,
        token=token(context.rng, _TOKEN_CHARACTERS),
        argv=spec.argv if script is None else script_argv(handle.script_path, script, spec.argv),
        cwd=_directory(spec, handle) or env.get("HOME", "/"),
        env=env,
        secrets=spec.secrets,
        secrets_dir=str(base.secrets_dir),
        outputs=spec.outputs,
        outputs_on_failure=spec.outputs_on_failure,
        time_limit_ms=spec.time_limit_ms or None,
        deadline_boot_ms=spec.deadline_at - epoch_offset_ms if spec.deadline_at else None,
        grace_ms=spec.grace_ms or timings.grace_ms,
        signal=spec.signal or "TERM",
        lead_ms=spec.lead_ms,
        boot_id=base.boot_id,
        claim_boot_ms=boot_ms,
        start_within_ms=timings.start_within_ms,
        exclusive_ms=timings.exclusive_ms if spec.exclusive else None,
        epoch_offset_ms=epoch_offset_ms,
    )


def _directory(spec: JobSpec, handle: JobHandle) -> str:
    if spec.snapshot is None:
        return spec.cwd
    return str(handle.tree_path / spec.snapshot.directory)


def _environment(message: RunMessage, handle: JobHandle, base: JobBase) -> dict[str, str]:
    """``GPUQ_TOKEN`` and ``GPUQ_CANCEL`` are added by the runner."""
    tree = {} if message.job.snapshot is None else {"GPUQ_SNAPSHOT": str(handle.tree_path)}
    return {
        "PYTHONUNBUFFERED": "1",
        **base.env,
        **message.job.env,
        "CUDA_VISIBLE_DEVICES": visible_devices(message.slots, base.mig_uuids),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUQ_JOB_ID": message.job.id,
        "GPUQ_ATTEMPT": str(message.attempt),
        "GPUQ_REPORT": str(handle.report_path),
        **tree,
    }


def visible_devices(slots: tuple[WorkerName, ...], mig_uuids: Mapping[int, str]) -> str:
    """The GPUs of the slots as CUDA reads them: indices, MIG instances by uuid; empty for CPU."""
    parsed = [WORKER.fullmatch(slot) for slot in slots]
    indices = sorted(int(m[3]) for m in parsed if m is not None and m[2] == "gpu")
    return ",".join(mig_uuids.get(index, str(index)) for index in indices)
