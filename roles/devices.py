"""What this node's GPUs say of themselves: the only module that imports NVML.

Every value is optional, because every one is missing somewhere (a GB10 reports no memory, a
MIG instance no utilisation), and none is ever invented. A node without NVML has no readings
and no problem. What NVML cannot tell of a GPU that it has shown before is that GPU's
``problem``: the driver does not match, a call hangs, the GPU fell off the bus. An error that
a GPU has counted or told of (ECC, XID) is a reading, not a problem: what it means differs
from one to the next, and jobs that fail for it block their node.

A GPU in MIG mode is shown as its instances. Their index is made of the GPU's and their own,
and CUDA knows them by their uuid alone.

NVML calls can hang in the kernel for ever, so they are made in a thread; one that hangs is
waited for once, and as long as it hangs no other is started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ledger.clock import Clock, SystemClock
from ledger.errors import RequestError
from ledger.events import Slot
from ledger.names import NodeName, WorkerName, worker_name

T = TypeVar("T")

DEFAULT_TIMEOUT_MS = 5_000

BUSY_PERCENT = 15
"""A GPU that somebody else uses more than this takes no job of ours."""

BUSY = "busy with somebody else's work"

MIG_BASE = 100
"""Instance 2 of GPU 0 has index 102, of GPU 1 index 202; GPUs themselves stay below."""

_EVENTS_MAX = 100
"""So many XIDs are taken in at one reading."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU (or MIG instance) at one moment; None is "NVML does not say"."""

    index: int
    """As it was first seen: NVML's, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    uuid: str | None = None
    name: str | None = None
    utilisation_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    """Of the whole GPU."""
    ecc_errors: int | None = None
    """Uncorrected, since the driver was loaded, of the whole GPU."""
    xid: int | None = None
    """The newest critical error that the driver has told of to this process."""
    problem: str | None = None
    """Why it must take no work."""


class GpuReader:
    """Reads all GPUs of this node, also on a node that has none.

    ``nvml`` is a module with the functions of ``pynvml``; without one it is imported.
    """

    def __init__(
        self,
        nvml: Any = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        clock: Clock | None = None,
    ) -> None:
        self._nvml = nvml if nvml is not None else _import_nvml()
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._known: dict[int, Reading] = {}
        self._initialised = False
        self._events: Any = None
        self._xids: dict[str, int] = {}
        self._call: _Call | None = None
        self.problem: str | None = None
        """Why the last ``read`` could ask no GPU; None also on a node without NVML."""

    def read(self) -> list[Reading]:
        """All GPUs seen so far, by index; takes at most ``timeout_ms``."""
        if self._nvml is None:
            return []
        if self._call is None or not self._call.is_alive():
            # What a call that had hung says at last is old by now, and is not looked at.
            self._call = _Call(self._read_all, self._clock.wall_ms())
            self._call.start()
            self._call.join(self._timeout_ms / 1000)
        if self._call.is_alive():
            since = datetime.fromtimestamp(self._call.started_at_ms / 1000, UTC)
            return self._all_fail(f"NVML does not answer since {since:%Y-%m-%d %H:%M:%S} UTC")
        answer = self._call.answer
        assert answer is not None, "the thread that reads NVML ended with an exception"
        if isinstance(answer, str):
            return self._all_fail(answer)
        self.problem = None
        return self._merge(answer)

    # -- in the thread

    def _read_all(self) -> list[Reading] | str:
        """What NVML says now, or why it says nothing."""
        nvml = self._nvml
        try:
            if not self._initialised:
                nvml.nvmlInit()
                self._initialised = True
                self._events = self._watch_for_xids()
            self._take_xids()
            count = nvml.nvmlDeviceGetCount()
            readings = [reading for index in range(count) for reading in self._read_gpu(index)]
        except nvml.NVMLError as error:
            self._forget_session()
            absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
            if error.value in absent and not self._known:
                return []
            return f"NVML: {error}"
        if any(reading.problem for reading in readings):
            self._forget_session()
        return readings

    def _forget_session(self) -> None:
        """Start afresh at the next reading, since a driver may have been mended."""
        if self._events is not None:
            self._tried(self._nvml.nvmlEventSetFree, self._events)
            self._events = None
        if self._initialised:
            self._initialised = False
            self._tried(self._nvml.nvmlShutdown)

    def _watch_for_xids(self) -> Any:
        """An event set of all GPUs that can tell of their XIDs; None where there is none."""
        nvml = self._nvml
        events = self._tried(nvml.nvmlEventSetCreate)
        for index in range(nvml.nvmlDeviceGetCount() if events is not None else 0):
            handle = self._tried(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                kind = nvml.nvmlEventTypeXidCriticalError
                self._tried(nvml.nvmlDeviceRegisterEvents, handle, kind, events)
        return events

    def _take_xids(self) -> None:
        """Note what has come in since the last reading; waits for nothing."""
        for _ in range(_EVENTS_MAX if self._events is not None else 0):
            event = self._tried(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            uuid = self._tried(self._nvml.nvmlDeviceGetUUID, event.device)
            if uuid is not None:
                self._xids[uuid] = event.eventData

    def _read_gpu(self, index: int) -> list[Reading]:
        """The GPU, or its instances where it is in MIG mode."""
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            mode = self._ask(nvml.nvmlDeviceGetMigMode, gpu)
            if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                utilisation = self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
                percent = None if utilisation is None else utilisation.gpu
                return [self._read_device(index, gpu, gpu, percent)]
            numbers = range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
            instances = [(i, self._find_instance(gpu, i)) for i in numbers]
            base = MIG_BASE * (index + 1)
            return [
                self._read_device(base + i, instance, gpu, None)
                for i, instance in instances
                if instance is not None
            ]
        except nvml.NVMLError as error:
            problem = f"NVML: {error}"
            known = [r for r in self._known.values() if r.index // MIG_BASE == index + 1]
            return [self._failed(r, problem) for r in known] or [
                Reading(index=index, problem=problem)
            ]

    def _find_instance(self, gpu: Any, number: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_FOUND:
                return None
            raise

    def _read_device(self, index: int, device: Any, gpu: Any, percent: int | None) -> Reading:
        """``device`` is ``gpu`` or an instance of it."""
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        return Reading(
            index=index,
            uuid=self._ask(nvml.nvmlDeviceGetUUID, device),
            name=self._ask(nvml.nvmlDeviceGetName, device),
            utilisation_percent=percent,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            ecc_errors=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                gpu,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            xid=self._xids.get(self._ask(nvml.nvmlDeviceGetUUID, gpu) or ""),
        )

    def _ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The answer, or None where this GPU or this user has none."""
        nvml = self._nvml
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                return None
            raise

    def _tried(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The answer, or None where it fails: what matters fails again when it is read."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    # -- in the caller's

    def _all_fail(self, problem: str) -> list[Reading]:
        self.problem = problem
        return [self._failed(reading, problem) for reading in self._sorted_known()]

    def _merge(self, fresh: Sequence[Reading]) -> list[Reading]:
        """Fresh readings under the indices at which their GPUs were first seen."""
        index_of = {known.uuid: known.index for known in self._known.values() if known.uuid}
        now: dict[int, Reading] = {}
        for reading in fresh:
            index = index_of.get(reading.uuid or "", reading.index)
            known = self._known.get(index)
            if index != reading.index:
                reading = _renumbered(reading, index)
            elif known is not None and reading.problem is not None:
                reading = self._failed(known, reading.problem)
            elif known is None or known.uuid is None:
                self._known[index] = reading
            now[index] = reading
        for known in self._sorted_known():
            gone = self._failed(known, "it is gone: NVML no longer lists it")
            now.setdefault(known.index, gone)
        return [now[index] for index in sorted(now)]

    def _failed(self, known: Reading, problem: str) -> Reading:
        """Nothing but who the GPU is, what is wrong with it, and what the driver told of it."""
        return Reading(
            index=known.index,
            uuid=known.uuid,
            name=known.name,
            xid=self._xids.get(known.uuid or ""),
            problem=problem,
        )

    def _sorted_known(self) -> list[Reading]:
        return [self._known[index] for index in sorted(self._known)]


class _Call(threading.Thread):
    """One look at NVML. A daemon, because it must not keep the process from ending."""

    def __init__(self, read: Callable[[], list[Reading] | str], started_at_ms: int) -> None:
        super().__init__(name="nvml", daemon=True)
        self._read = read
        self.started_at_ms = started_at_ms
        self.answer: list[Reading] | str | None = None

    def run(self) -> None:
        self.answer = self._read()


def _renumbered(reading: Reading, index: int) -> Reading:
    """A GPU that NVML counts at another place than when it was first seen, at ``index``."""
    problem = reading.problem
    if not is_mig(reading.uuid or ""):
        # Jobs get indices, and this one would now mean another GPU.
        problem = f"NVML now counts it as GPU {reading.index}; restart the supervisor"
    return msgspec.structs.replace(reading, index=index, problem=problem)


def is_mig(uuid: str) -> bool:
    """Whether the uuid is one of a MIG instance, which CUDA knows by nothing else."""
    return uuid.startswith("MIG-")


def mig_uuids(readings: Sequence[Reading]) -> dict[int, str]:
    """By index, the uuids of those that are MIG instances."""
    return {r.index: r.uuid for r in readings if r.uuid is not None and is_mig(r.uuid)}


def is_busy(percent: int | None) -> bool:
    """Whether a GPU that none of our jobs uses is used by somebody else."""
    return percent is not None and percent >= BUSY_PERCENT


def busy_problem(percent: int | None) -> str:
    """Why a GPU that is used by somebody else takes no work; empty where it is not."""
    return f"its GPU is {percent} % {BUSY}" if is_busy(percent) else ""


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def choose_gpus(spec: str, reader: GpuReader) -> list[Reading]:
    """The GPUs that ``--gpus`` names: ``all``, or indices such as ``0,1``.

    ``all`` is an empty list on a node without GPUs. Raises RequestError for what cannot be
    read, is named twice, is not there, or cannot be checked because NVML has a problem.
    """
    present = {reading.index: reading for reading in reader.read()}
    if reader.problem is not None:
        raise RequestError(f"the GPUs cannot be read ({reader.problem}): mend that, or --slots N")
    if spec == "all":
        return list(present.values())
    parts = spec.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise RequestError(f"--gpus {spec!r} cannot be read; use 'all' or indices such as 0,1")
    indices = [int(part) for part in parts]
    if len(set(indices)) < len(indices):
        raise RequestError(f"--gpus {spec} names a GPU twice")
    if absent := sorted(set(indices) - set(present)):
        here = ", ".join(map(str, present)) or "none"
        raise RequestError(f"there is no GPU {absent[0]} on this node; there are: {here}")
    return [present[index] for index in indices]


def gpus_of_slots(reader: GpuReader, node: NodeName, own: Slot) -> dict[WorkerName, Reading]:
    """The GPUs of a node by slot as they are now; ``own`` is known by its uuid, if it has one."""
    by_slot = {worker_name(node, "gpu", reading.index): reading for reading in reader.read()}
    by_uuid = {reading.uuid: reading for reading in by_slot.values() if reading.uuid}
    if own.gpu_uuid and by_uuid:
        name = worker_name(node, own.kind, own.index)
        by_slot.pop(name, None)
        if own.gpu_uuid in by_uuid:
            by_slot[name] = by_uuid[own.gpu_uuid]
    return by_slot
