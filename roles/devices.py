"""What this node's GPUs say of themselves: the only module that imports NVML.

Every value is optional, because every one is missing somewhere (a GB10 reports no memory, a
MIG parent no utilisation), and none is ever invented. A node without NVML has no readings
and no problem. What NVML cannot tell of a GPU that it has shown before is that GPU's
``problem``: the driver does not match, a call hangs, the GPU fell off the bus.

NVML calls can hang in the kernel for ever, so they are made in a thread; one that hangs is
waited for once, and as long as it hangs no other is started.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ledger.clock import Clock, SystemClock
from ledger.errors import RequestError

T = TypeVar("T")

DEFAULT_TIMEOUT_MS = 5_000


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment; None is "NVML does not say"."""

    index: int
    """As it was first seen: NVML's, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    uuid: str | None = None
    name: str | None = None
    utilisation_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    ecc_errors: int | None = None
    """Uncorrected, since the driver was loaded."""
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

    def _read_all(self) -> list[Reading] | str:
        """In the thread: what NVML says now, or why it says nothing."""
        nvml = self._nvml
        try:
            if not self._initialised:
                nvml.nvmlInit()
                self._initialised = True
            readings = [self._read_one(index) for index in range(nvml.nvmlDeviceGetCount())]
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
        if self._initialised:
            self._initialised = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # it is to be forgotten in any case

    def _read_one(self, index: int) -> Reading:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            utilisation = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
            return Reading(
                index=index,
                uuid=self._ask(nvml.nvmlDeviceGetUUID, handle),
                name=self._ask(nvml.nvmlDeviceGetName, handle),
                utilisation_percent=None if utilisation is None else utilisation.gpu,
                memory_total_bytes=None if memory is None else memory.total,
                memory_used_bytes=None if memory is None else memory.used,
                temperature_c=self._ask(
                    nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
                ),
                ecc_errors=self._ask(
                    nvml.nvmlDeviceGetTotalEccErrors,
                    handle,
                    nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                ),
            )
        except nvml.NVMLError as error:
            return Reading(index=index, problem=f"NVML: {error}")

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

    def _all_fail(self, problem: str) -> list[Reading]:
        self.problem = problem
        return [_failed(reading, problem) for reading in self._sorted_known()]

    def _merge(self, fresh: Sequence[Reading]) -> list[Reading]:
        """Fresh readings under the indices at which their GPUs were first seen."""
        index_of = {known.uuid: known.index for known in self._known.values() if known.uuid}
        now: dict[int, Reading] = {}
        for reading in fresh:
            index = index_of.get(reading.uuid or "", reading.index)
            known = self._known.get(index)
            if index != reading.index:
                # Jobs get indices, and this one would now mean another GPU.
                problem = f"NVML now counts it as GPU {reading.index}; restart the supervisor"
                reading = msgspec.structs.replace(reading, index=index, problem=problem)
            elif known is not None and reading.problem is not None:
                reading = _failed(known, reading.problem)
            elif known is None or known.uuid is None:
                self._known[index] = reading
            now[index] = reading
        for known in self._sorted_known():
            now.setdefault(known.index, _failed(known, "it is gone: NVML no longer lists it"))
        return [now[index] for index in sorted(now)]

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


def _failed(known: Reading, problem: str) -> Reading:
    """Nothing but who the GPU is and what is wrong with it."""
    return Reading(index=known.index, uuid=known.uuid, name=known.name, problem=problem)


def _import_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def gpu_indices(spec: str, reader: GpuReader) -> list[int]:
    """The GPUs that ``--gpus`` names: ``all``, or indices such as ``0,1``.

    ``all`` is an empty list on a node without GPUs. Raises RequestError for what cannot be
    read, is named twice, is not there, or cannot be checked because NVML has a problem.
    """
    present = [reading.index for reading in reader.read()]
    if reader.problem is not None:
        raise RequestError(f"the GPUs cannot be read ({reader.problem}); see nvidia-smi")
    if spec == "all":
        return present
    parts = spec.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise RequestError(f"--gpus {spec!r} cannot be read; use 'all' or indices such as 0,1")
    indices = [int(part) for part in parts]
    if len(set(indices)) < len(indices):
        raise RequestError(f"--gpus {spec} names a GPU twice")
    if absent := sorted(set(indices) - set(present)):
        here = ", ".join(map(str, present)) or "none"
        raise RequestError(f"there is no GPU {absent[0]} on this node; there are: {here}")
    return indices
