"""GPU readings against an NVML that can do everything that real ones have done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from ledger.errors import RequestError
from ledger.events import Slot
from ledger.names import NodeName, WorkerName
from roles.devices import GpuReader, Reading, choose_gpus, gpus_of_slots, mig_uuids
from tests.waiting import wait_until

MIB = 1 << 20


class FakeNvml:
    """The part of ``pynvml`` that is used, over GPUs that are plain dictionaries.

    A value that is an int where a reading is expected is that reading; an exception is
    raised. ``bus`` is what NVML would list now, by its own index.
    """

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.bus = list(gpus)
        self.init_error: Exception | None = None
        self.initialised = 0
        self.event_sets: list[list[dict[str, Any]]] = []
        self.events: list[tuple[dict[str, Any], int]] = []
        """XIDs that nobody has fetched yet, with their GPUs."""
        self.hang: threading.Event | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "nvmlEventType")):
            return getattr(pynvml, name)  # error classes and constants are the real ones
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.hang is not None:
            self.hang.wait()
        return len(self.bus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self._value(self.bus[index], "handle", self.bus[index])

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "uuid")

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "name")

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return SimpleNamespace(gpu=self._value(gpu, "utilisation"), memory=99)

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> Any:
        total, used = self._value(gpu, "memory")
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], sensor: int) -> Any:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._value(gpu, "temperature")

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, span: int) -> Any:
        assert kind == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        assert span == pynvml.NVML_VOLATILE_ECC
        return self._value(gpu, "ecc")

    def nvmlDeviceGetMigMode(self, gpu: dict[str, Any]) -> list[int]:
        mode = self._value(gpu, "mig", error(pynvml.NVML_ERROR_NOT_SUPPORTED))
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: dict[str, Any], index: int) -> Any:
        if index not in gpu["instances"]:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu["instances"][index]

    def nvmlEventSetCreate(self) -> list[dict[str, Any]]:
        self.event_sets.append([])
        return self.event_sets[-1]

    def nvmlDeviceRegisterEvents(
        self, gpu: dict[str, Any], kinds: int, events: list[dict[str, Any]]
    ) -> None:
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        self._value(gpu, "register")
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[dict[str, Any]], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        for told in self.events:
            if told[0] in events:
                self.events.remove(told)
                return SimpleNamespace(device=told[0], eventData=told[1])
        raise error(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, events: list[dict[str, Any]]) -> None:
        self.event_sets.remove(events)

    @staticmethod
    def _value(gpu: dict[str, Any], what: str, default: Any = None) -> Any:
        value = gpu.get(what, default)
        if isinstance(value, Exception):
            raise value
        return value


def a_gpu(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{number}",
        "name": "NVIDIA H100 80GB HBM3",
        "utilisation": 10 + number,
        "memory": (81_559 * MIB, 1_000 * MIB),
        "temperature": 40 + number,
        "ecc": 0,
    } | changes


def error(code: int) -> Exception:
    return pynvml.NVMLError(code)


def a_reading(number: int, **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "index": number,
        "uuid": f"GPU-{number}",
        "name": "NVIDIA H100 80GB HBM3",
        "utilisation_percent": 10 + number,
        "memory_total_bytes": 81_559 * MIB,
        "memory_used_bytes": 1_000 * MIB,
        "temperature_c": 40 + number,
        "ecc_errors": 0,
    }
    return Reading(**values | changes)


def failed(number: int, problem: str) -> Reading:
    return Reading(
        index=number, uuid=f"GPU-{number}", name="NVIDIA H100 80GB HBM3", problem=problem
    )


LOST = "NVML: GPU is lost"
MISMATCH = "NVML: RM has detected an NVML/RM version mismatch."


def test_a_healthy_node_reads_all_of_each_gpu() -> None:
    reader = GpuReader(FakeNvml(a_gpu(0), a_gpu(1)))
    assert reader.read() == [a_reading(0), a_reading(1)]
    assert reader.problem is None


@pytest.mark.parametrize(
    ("what", "absent"),
    [
        ("memory", {"memory_total_bytes": None, "memory_used_bytes": None}),
        ("utilisation", {"utilisation_percent": None}),
        ("temperature", {"temperature_c": None}),
        ("ecc", {"ecc_errors": None}),
        ("name", {"name": None}),
    ],
)
@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    ],
)
def test_a_reading_that_a_gpu_does_not_have_is_absent_and_no_problem(
    what: str, absent: dict[str, None], code: int
) -> None:
    reader = GpuReader(FakeNvml(a_gpu(0, **{what: error(code)})))
    assert reader.read() == [a_reading(0, **absent)]


def test_a_node_without_the_python_module_has_no_gpu_and_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = GpuReader()
    assert (reader.read(), reader.problem) == ([], None)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_a_node_without_a_driver_has_no_gpu_and_no_problem(code: int) -> None:
    nvml = FakeNvml()
    nvml.init_error = error(code)
    reader = GpuReader(nvml)
    assert (reader.read(), reader.problem) == ([], None)


def test_a_driver_that_is_unloaded_under_way_is_a_problem_of_its_gpus() -> None:
    nvml = FakeNvml(a_gpu(0))
    reader = GpuReader(nvml)
    reader.read()
    nvml.bus[0]["handle"] = error(pynvml.NVML_ERROR_UNINITIALIZED)
    assert reader.read() == [failed(0, "NVML: Uninitialized")]
    nvml.init_error = error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert reader.read() == [failed(0, "NVML: Driver Not Loaded")]


def test_a_driver_mismatch_blocks_and_passes_when_it_is_mended() -> None:
    nvml = FakeNvml(a_gpu(0))
    nvml.init_error = error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    reader = GpuReader(nvml)
    assert (reader.read(), reader.problem) == ([], MISMATCH)
    nvml.init_error = None
    assert (reader.read(), reader.problem) == ([a_reading(0)], None)


def test_a_lost_gpu_has_its_name_and_no_readings_and_its_sister_has_hers() -> None:
    nvml = FakeNvml(a_gpu(0), a_gpu(1))
    reader = GpuReader(nvml)
    reader.read()
    nvml.bus[0]["temperature"] = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert reader.read() == [failed(0, LOST), a_reading(1)]
    nvml.bus[0]["temperature"] = 40
    assert reader.read() == [a_reading(0), a_reading(1)]
    assert nvml.initialised == 1


def test_a_gpu_that_is_lost_from_the_beginning_is_known_by_its_index() -> None:
    nvml = FakeNvml(a_gpu(0, handle=error(pynvml.NVML_ERROR_GPU_IS_LOST)))
    reader = GpuReader(nvml)
    assert reader.read() == [Reading(index=0, problem=LOST)]
    del nvml.bus[0]["handle"]
    assert reader.read() == [a_reading(0)]


def test_a_gpu_off_the_bus_is_gone_and_the_renumbered_one_takes_no_work() -> None:
    nvml = FakeNvml(a_gpu(0), a_gpu(1))
    reader = GpuReader(nvml)
    reader.read()
    del nvml.bus[0]
    assert reader.read() == [
        failed(0, "it is gone: NVML no longer lists it"),
        a_reading(1, problem="NVML now counts it as GPU 0; restart the supervisor"),
    ]
    nvml.bus.insert(0, a_gpu(0))
    assert reader.read() == [a_reading(0), a_reading(1)]


# --- XIDs ---------------------------------------------------------------------------------


def test_the_newest_xid_of_a_gpu_is_shown_and_its_sister_has_none() -> None:
    nvml = FakeNvml(a_gpu(0), a_gpu(1))
    reader = GpuReader(nvml)
    assert reader.read() == [a_reading(0), a_reading(1)]
    nvml.events = [(nvml.bus[1], 31), (nvml.bus[1], 94)]
    assert reader.read() == [a_reading(0), a_reading(1, xid=94)]
    assert reader.read() == [a_reading(0), a_reading(1, xid=94)]
    assert nvml.events == []


def test_a_gpu_that_fell_off_the_bus_still_shows_the_xid_that_said_so() -> None:
    nvml = FakeNvml(a_gpu(0))
    reader = GpuReader(nvml)
    reader.read()
    nvml.events = [(nvml.bus[0], 79)]
    nvml.bus[0]["temperature"] = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    lost = Reading(index=0, uuid="GPU-0", name="NVIDIA H100 80GB HBM3", xid=79, problem=LOST)
    assert reader.read() == [lost]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_a_gpu_that_cannot_tell_of_xids_is_read_all_the_same(code: int) -> None:
    nvml = FakeNvml(a_gpu(0, register=error(code)), a_gpu(1))
    reader = GpuReader(nvml)
    reader.read()
    nvml.events = [(nvml.bus[1], 48)]
    assert reader.read() == [a_reading(0), a_reading(1, xid=48)]


def test_sessions_that_are_begun_afresh_leave_no_event_sets_behind() -> None:
    nvml = FakeNvml(a_gpu(0), a_gpu(1, handle=error(pynvml.NVML_ERROR_GPU_IS_LOST)))
    reader = GpuReader(nvml)
    for _ in range(5):
        reader.read()
        assert (nvml.event_sets, nvml.initialised) == ([], 0)


# --- MIG ----------------------------------------------------------------------------------


def a_mig_gpu(number: int, *instances: int) -> dict[str, Any]:
    parts = {
        i: {
            "uuid": f"MIG-{number}{i}",
            "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "memory": (9_984 * MIB, 15 * MIB),
        }
        for i in instances
    }
    return a_gpu(number, mig=pynvml.NVML_DEVICE_MIG_ENABLE, instances=parts)


def a_mig_reading(number: int, instance: int, **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "index": 100 * (number + 1) + instance,
        "uuid": f"MIG-{number}{instance}",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "memory_total_bytes": 9_984 * MIB,
        "memory_used_bytes": 15 * MIB,
        "temperature_c": 40 + number,
        "ecc_errors": 0,
    }
    return Reading(**values | changes)


def test_a_gpu_in_mig_mode_is_its_instances_with_uuids_of_their_own() -> None:
    reader = GpuReader(FakeNvml(a_gpu(0, mig=pynvml.NVML_DEVICE_MIG_DISABLE), a_mig_gpu(1, 0, 2)))
    readings = reader.read()
    assert readings == [a_reading(0), a_mig_reading(1, 0), a_mig_reading(1, 2)]
    assert mig_uuids(readings) == {200: "MIG-10", 202: "MIG-12"}


def test_an_instance_that_is_removed_is_gone_and_its_sister_goes_on() -> None:
    nvml = FakeNvml(a_mig_gpu(0, 0, 1))
    reader = GpuReader(nvml)
    reader.read()
    del nvml.bus[0]["instances"][0]
    gone = "it is gone: NVML no longer lists it"
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert reader.read() == [
        Reading(index=100, uuid="MIG-00", name=name, problem=gone), a_mig_reading(0, 1),
    ]  # fmt: skip


def test_a_lost_gpu_in_mig_mode_is_a_problem_of_each_of_its_instances() -> None:
    nvml = FakeNvml(a_mig_gpu(0, 0, 1))
    reader = GpuReader(nvml)
    reader.read()
    nvml.bus[0]["handle"] = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert [(r.index, r.problem) for r in reader.read()] == [(100, LOST), (101, LOST)]
    del nvml.bus[0]["handle"]
    assert reader.read() == [a_mig_reading(0, 0), a_mig_reading(0, 1)]


def test_instances_are_known_by_their_uuid_when_their_gpu_is_renumbered() -> None:
    nvml = FakeNvml(a_gpu(0), a_mig_gpu(1, 0))
    reader = GpuReader(nvml)
    reader.read()
    del nvml.bus[0]
    assert reader.read()[1] == a_mig_reading(1, 0)


# --- calls that hang ----------------------------------------------------------------------


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_764_523_800_000  # date -u -d @1764523800: 2025-11-30 17:30:00

    def boot_ms(self) -> int:
        return 0

    def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError(f"slept {duration_ms} ms")


@pytest.fixture
def hanging() -> Iterator[FakeNvml]:
    nvml = FakeNvml(a_gpu(0))
    yield nvml
    if nvml.hang is not None:
        nvml.hang.set()


def nvml_threads() -> int:
    return sum(thread.name == "nvml" for thread in threading.enumerate())


def test_a_call_that_hangs_is_waited_for_once_and_not_repeated(hanging: FakeNvml) -> None:
    reader = GpuReader(hanging, timeout_ms=1_000, clock=StoppedClock())
    reader.read()
    threads_before = nvml_threads()
    hanging.hang = threading.Event()
    problem = "NVML does not answer since 2025-11-30 17:30:00 UTC"
    for _ in range(5):
        assert reader.read() == [failed(0, problem)]
        assert reader.problem == problem
    assert nvml_threads() == threads_before + 1


def test_an_answer_that_comes_at_last_is_too_old_to_be_used(hanging: FakeNvml) -> None:
    reader = GpuReader(hanging, timeout_ms=50, clock=StoppedClock())
    hanging.hang = threading.Event()
    assert reader.read() == []
    hanging.hang.set()
    wait_until(lambda: nvml_threads() == 0, deadline_s=10, what="the end of the hung call")
    hanging.bus[0]["utilisation"] = 77
    fresh = wait_until(reader.read, deadline_s=10, what="a reading")
    assert fresh == [a_reading(0, utilisation_percent=77)]


# --- --gpus -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "indices"), [("all", [0, 1, 2]), ("0,1", [0, 1]), ("2", [2]), ("2,0", [2, 0])]
)
def test_gpus_are_named_by_index(spec: str, indices: list[int]) -> None:
    reader = GpuReader(FakeNvml(a_gpu(0), a_gpu(1), a_gpu(2)))
    assert [reading.index for reading in choose_gpus(spec, reader)] == indices


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("0,x", "use 'all' or indices such as 0,1"),
        ("", "use 'all' or indices"),
        ("-1", "use 'all' or indices"),
        ("0;1", "use 'all' or indices"),
        ("\u0661", "use 'all' or indices"),
        ("1,1", "names a GPU twice"),
        ("0,7", "there is no GPU 7 on this node; there are: 0, 1"),
    ],
)
def test_what_names_no_gpu_is_refused(spec: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        choose_gpus(spec, GpuReader(FakeNvml(a_gpu(0), a_gpu(1))))


def test_all_of_no_gpus_is_none() -> None:
    nvml = FakeNvml()
    assert choose_gpus("all", GpuReader(nvml)) == []
    with pytest.raises(RequestError, match="there are: none"):
        choose_gpus("0", GpuReader(nvml))


def test_gpus_that_cannot_be_read_are_not_taken_for_none() -> None:
    nvml = FakeNvml()
    nvml.init_error = error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(RequestError, match="version mismatch"):
        choose_gpus("all", GpuReader(nvml))


# --- the real library ---------------------------------------------------------------------


def test_the_gpus_of_slots_are_known_by_index_and_ones_own_by_its_uuid() -> None:
    reader = GpuReader(FakeNvml(a_gpu(0), a_gpu(1)))
    by_index = {"n1-gpu0": a_reading(0), "n1-gpu1": a_reading(1)}
    own = Slot(kind="gpu", index=0, gpu_uuid="GPU-0")
    assert gpus_of_slots(reader, NodeName("n1"), own) == by_index
    assert gpus_of_slots(reader, NodeName("n1"), Slot(kind="gpu", index=0)) == by_index
    gone = Slot(kind="gpu", index=0, gpu_uuid="GPU-7")
    assert gpus_of_slots(reader, NodeName("n1"), gone) == {"n1-gpu1": a_reading(1)}
    moved = Slot(kind="gpu", index=4, gpu_uuid="GPU-1")
    assert gpus_of_slots(reader, NodeName("n1"), moved)[WorkerName("n1-gpu4")] == a_reading(1)


@pytest.mark.gpu
def test_a_real_gpu_is_read() -> None:
    reader = GpuReader()
    readings = reader.read()
    if not readings and reader.problem is None:
        pytest.skip("no NVIDIA GPU here")
    assert reader.problem is None
    for reading in readings:
        assert reading.problem is None
        assert reading.uuid is not None
        assert reading.uuid.startswith(("GPU-", "MIG-"))
        assert reading.name
        assert reading.temperature_c is None or 0 < reading.temperature_c < 120
        assert reading.ecc_errors is None or reading.ecc_errors >= 0
        assert reading.utilisation_percent is None or 0 <= reading.utilisation_percent <= 100


def test_the_real_library_is_called_as_it_wants_to_be() -> None:
    """Every function that is used exists, so that a renamed one is noticed without a GPU."""
    used = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    assert len(used) == 17
    assert [name for name in used if not callable(getattr(pynvml, name, None))] == []
