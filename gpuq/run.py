"""``gpuq up``, ``supervisor``, ``dispatcher`` and the hidden ``worker``: the long-running roles.

Owns the defaults of a node (its name, its slots), the command lines with which a supervisor
starts its workers and its dispatcher, and what signals mean in the foreground: the first
Ctrl-C drains, the second stops the jobs. The roles themselves are in ``roles``, which is
imported only where one is run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gpuq.client import Client, connect, settings_of
from gpuq.config import StoreChoice
from gpuq.render import say
from ledger.errors import RequestError
from ledger.events import Slot
from ledger.names import WORKER, NodeName, WorkerName, check_name, worker_name

if TYPE_CHECKING:
    from roles.context import Context
    from roles.devices import GpuReader, Reading

CPU_SLOTS_DEFAULT = 2
"""At most so many on a node without GPUs, so that a laptop stays usable."""

SLOTS_MAX = 256

NodeOption = Annotated[str, typer.Option("--node", help="This node's name; else the host's.")]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", help="That many CPU slots.", min=1, max=SLOTS_MAX)
]
GpusOption = Annotated[
    str, typer.Option("--gpus", help="all, or indices such as 0,1. Default: all, if any.")
]
PoolOption = Annotated[str, typer.Option("--pool", "-p", help="The pool that its slots serve.")]


def up(
    context: typer.Context,
    *,
    node: NodeOption = "",
    slots: SlotsOption = None,
    gpus: GpusOption = "",
    pool: PoolOption = "",
) -> None:
    """Run jobs on this machine: its supervisor, its workers and an elected dispatcher."""
    supervisor(context, node=node, slots=slots, gpus=gpus, pool=pool, no_dispatch=False)


def supervisor(
    context: typer.Context,
    *,
    node: NodeOption = "",
    slots: SlotsOption = None,
    gpus: GpusOption = "",
    pool: PoolOption = "",
    no_dispatch: Annotated[
        bool, typer.Option("--no-dispatch", help="Never lead; another node must.")
    ] = False,
) -> None:
    """The same as 'up', for service managers."""
    from roles.devices import GpuReader
    from roles.host import DISPATCHER, LocalHost
    from roles.supervisor import Supervisor, SupervisorOptions

    client = connect(settings_of(context))
    _log_to_stderr()
    name = _node(client, node)
    pool = check_name("pool", pool) if pool else client.settings.pool.value
    reader = GpuReader()
    chosen = _slots(name, slots, gpus, reader)
    command = _command(client.settings.store)
    argv: dict[str, list[str]] = {
        worker: [*command, "worker", "--node", name, "--pool", pool, "--worker", worker,
                 "--slot", msgspec.json.encode(slot).decode()]
        for worker, slot in chosen.items()
    }  # fmt: skip
    role_context = _context(client)
    options = SupervisorOptions(
        node=name,
        pool=pool,
        slots=chosen,
        dispatches=not no_dispatch,
        read_gpus=reader.read,
    )
    argv[DISPATCHER] = [*command, "dispatcher", "--node", name]
    role = Supervisor(role_context, options, LocalHost(role_context, name, argv))
    _heed(
        lambda: _told(f"{name} drains: running jobs end first; again to stop them", role.drain),
        lambda: _told(f"{name} stops its jobs", role.stop_jobs),
    )
    kinds = {slot.kind for slot in chosen.values()}
    say(
        f"gpuq: node {name} serves pool {pool} with {len(chosen)} "
        f"{'/'.join(sorted(kinds)).upper()} slot{'' if len(chosen) == 1 else 's'}, ledger at "
        f"{client.store.url}; Ctrl-C drains"
    )
    role.run()


def dispatcher(context: typer.Context, *, node: NodeOption = "") -> None:
    """Lead where nobody else does, without running any jobs."""
    from roles.dispatcher import Dispatcher
    from roles.locks import FileLock
    from roles.processes import identity_of
    from roles.status import WorkerStatus, write_status
    from roles.wake import LocalNeighbours

    client = connect(settings_of(context))
    _log_to_stderr()
    name = _node(client, node)
    role_context = _context(client)
    folder = role_context.node_dir(name)
    lock = FileLock.take_soon(folder / "dispatcher.lock", role_context.clock)
    if lock is None:
        raise RequestError(
            f"a dispatcher of node {name} already runs on this machine: "
            "give this one another name with --node"
        )
    write_status(folder, WorkerStatus(process=identity_of(os.getpid())))
    stopping: list[bool] = []
    _heed(lambda: stopping.append(True), lambda: stopping.append(True))
    try:
        Dispatcher(
            role_context,
            name,
            LocalNeighbours(role_context, name),
            stopping=lambda: bool(stopping),
        ).run()
    finally:
        lock.release()


def worker(
    context: typer.Context,
    *,
    node: Annotated[str, typer.Option("--node")],
    pool: Annotated[str, typer.Option("--pool")],
    worker: Annotated[str, typer.Option("--worker")],
    slot: Annotated[str, typer.Option("--slot", help="JSON, as the ledger has it.")],
) -> None:
    """Serve one slot; started by the supervisor."""
    from roles.jobplan import JobBase, safe_env
    from roles.processes import boot_id, identity_of
    from roles.service import WorkerOptions
    from roles.worker_process import serve

    client = connect(settings_of(context))
    _log_to_stderr()
    served = _read_slot(slot)
    if not WORKER.fullmatch(worker):
        raise RequestError(f"{worker!r} is not a worker: say NODE-gpuN or NODE-cpuN")
    options = WorkerOptions(
        worker=WorkerName(worker),
        node=NodeName(check_name("node", node)),
        pool=check_name("pool", pool),
        slot=served,
        job_base=JobBase(boot_id=boot_id(), env=safe_env(os.environ)),
        process=identity_of(os.getpid()),
    )
    serve(_context(client), options, _utilisation(served))


# --- what a node is made of


def _node(client: Client, flag: str) -> NodeName:
    return NodeName(check_name("node", flag) if flag else client.settings.host)


def _slots(
    node: NodeName, cpus: int | None, gpus: str, reader: GpuReader
) -> Mapping[WorkerName, Slot]:
    """What was asked for; else all GPUs, or a few CPU slots where there is none."""
    if cpus is not None and gpus:
        raise RequestError("--slots (CPU) and --gpus exclude each other: name one")
    if cpus is not None:
        return _cpu_slots(node, cpus)
    readings = {reading.index: reading for reading in reader.read()}
    if gpus and gpus != "all":
        return _gpu_slots(node, [_reading(readings, text) for text in gpus.split(",")])
    if readings:
        return _gpu_slots(node, list(readings.values()))
    if reader.problem is not None:
        raise RequestError(f"the GPUs cannot be read ({reader.problem}): mend that, or --slots N")
    if gpus:
        raise RequestError("this machine has no GPU that NVML knows: use --slots N")
    return _cpu_slots(node, min(CPU_SLOTS_DEFAULT, os.cpu_count() or 1))


def _cpu_slots(node: NodeName, count: int) -> Mapping[WorkerName, Slot]:
    return {worker_name(node, "cpu", i): Slot(kind="cpu", index=i) for i in range(count)}


def _reading(readings: Mapping[int, Reading], text: str) -> Reading:
    try:
        return readings[int(text)]
    except (KeyError, ValueError) as error:
        known = ", ".join(str(index) for index in readings) or "none"
        raise RequestError(f"no GPU {text.strip()!r}: this machine has {known}") from error


def _gpu_slots(node: NodeName, readings: Sequence[Reading]) -> Mapping[WorkerName, Slot]:
    return {
        worker_name(node, "gpu", reading.index): Slot(
            kind="gpu",
            index=reading.index,
            gpu_name=reading.name or "",
            gpu_uuid=reading.uuid or "",
            gpu_memory_bytes=reading.memory_total_bytes or 0,
        )
        for reading in readings
    }


def _read_slot(text: str) -> Slot:
    try:
        return msgspec.json.decode(text, type=Slot)
    except msgspec.DecodeError as error:
        raise RequestError(f"--slot {text!r} cannot be read: {error}") from error


def _utilisation(slot: Slot) -> Callable[[], int | None]:
    """How busy the slot's GPU is now, in percent; None where that cannot be read."""
    if slot.kind != "gpu":
        return lambda: None
    from roles.devices import GpuReader

    reader = GpuReader()

    def read() -> int | None:
        readings = {reading.index: reading for reading in reader.read()}
        own = readings.get(slot.index)
        return own.utilisation_percent if own is not None else None

    return read


# --- processes


def _context(client: Client) -> Context:
    from roles.context import Context
    from roles.processes import machine_id

    return Context(
        store=client.store,
        ledger=client.ledger,
        clock=client.clock,
        rng=client.rng,
        timings=client.settings.timings,
        state_dir=client.settings.state_dir,
        host=client.settings.host,
        machine=machine_id(client.settings.state_dir),
    )


def _command(choice: StoreChoice) -> list[str]:
    """How this gpuq is called again for the same store."""
    flags = {
        "--store": choice.url,
        "--endpoint-url": choice.endpoint_url,
        "--region": choice.region,
        "--ca-bundle": choice.ca_bundle,
    }
    words = [word for name, value in flags.items() if value for word in (name, value)]
    return [sys.executable, "-m", "gpuq", *words]


def _heed(first: Callable[[], object], further: Callable[[], object]) -> None:
    """Ctrl-C and TERM: the first one, and those after it."""
    heard: list[int] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        (further if heard else first)()
        heard.append(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handle)


def _told(text: str, action: Callable[[], None]) -> None:
    say(f"gpuq: {text}")
    action()


def _log_to_stderr() -> None:
    """One line an event, with its UTC time; readable, and plain enough for grep."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
