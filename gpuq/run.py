"""``gpuq up``, ``supervisor``, ``dispatcher`` and the hidden ``worker``: the long-running roles.

Owns the defaults of a node (its name, its slots), the command lines with which a supervisor
starts its workers and its dispatcher, and what signals mean in the foreground: the first
Ctrl-C drains, the second stops the jobs. The roles themselves are in ``roles``, which is
imported only where one is run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import msgspec
import typer

from gpuq.client import Client, connect, settings_of
from gpuq.config import Settings, StoreChoice
from gpuq.idle import connect_unless_idle, run_on_idle
from gpuq.parse import parse_duration
from gpuq.prices import parse_price
from gpuq.render import say
from ledger.clock import SystemClock
from ledger.errors import RequestError
from ledger.events import Slot
from ledger.names import WORKER, NodeName, WorkerName, check_name, worker_name
from ledger.spool import disk_refused

if TYPE_CHECKING:
    from roles.context import Context
    from roles.devices import GpuReader, Reading
    from roles.idle import Idleness
    from roles.jobplan import JobBase
    from roles.supervisor import SupervisorOptions

CPU_SLOTS_DEFAULT = 2
"""At most so many on a node without GPUs, so that a laptop stays usable."""

SLOTS_MAX = 256

_TMUX_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")

NodeOption = Annotated[str, typer.Option("--node", help="This node's name; else the host's.")]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", help="That many CPU slots.", min=1, max=SLOTS_MAX)
]
GpusOption = Annotated[
    str, typer.Option("--gpus", help="all, or indices such as 0,1. Default: all, if any.")
]
PoolOption = Annotated[str, typer.Option("--pool", "-p", help="The pool that its slots serve.")]

PriceOption = Annotated[
    str, typer.Option("--price", help="What this node costs an hour, for 'gpuq audit': 2.5.")
]


def up(
    context: typer.Context,
    *,
    node: NodeOption = "",
    slots: SlotsOption = None,
    gpus: GpusOption = "",
    pool: PoolOption = "",
    price: PriceOption = "",
) -> None:
    """Run jobs on this machine: its supervisor, its workers and an elected dispatcher."""
    supervisor(context, node=node, slots=slots, gpus=gpus, pool=pool, price=price)


def supervisor(
    context: typer.Context,
    *,
    node: NodeOption = "",
    slots: SlotsOption = None,
    gpus: GpusOption = "",
    pool: PoolOption = "",
    price: PriceOption = "",
    no_dispatch: Annotated[
        bool, typer.Option("--no-dispatch", help="Never lead; another node must.")
    ] = False,
    tmux: Annotated[
        str, typer.Option("--tmux", help="Run each worker in a window of this tmux session.")
    ] = "",
    idle_exit: Annotated[
        str, typer.Option("--idle-exit", help="End after so long without work: 30m.")
    ] = "",
    on_idle: Annotated[
        str, typer.Option("--on-idle", help="Shell command to run after that, once.")
    ] = "",
) -> None:
    """The same as 'up', for service managers and rented machines."""
    from roles.devices import GpuReader
    from roles.supervisor import SupervisorOptions

    settings = settings_of(context)
    _check_tmux_session(tmux)
    price_micros = parse_price(price) if price else 0
    idleness = _idleness(settings, idle_exit, on_idle)
    _log_to_stderr()
    client = connect_unless_idle(settings, idleness)
    if client is None:
        run_on_idle(on_idle)
        return
    name, reader = _node(client, node), GpuReader()
    options = SupervisorOptions(
        node=name,
        pool=check_name("pool", pool) if pool else client.settings.pool.value,
        slots=_slots(name, slots, gpus, reader),
        dispatches=not no_dispatch,
        read_gpus=reader.read,
        idleness=idleness,
        price_micros=price_micros,
    )
    if _supervise(client, options, tmux):
        run_on_idle(on_idle)


def _supervise(client: Client, options: SupervisorOptions, tmux: str) -> bool:
    """Be the node's supervisor; whether it ended for want of work."""
    from roles.host import LocalHost
    from roles.supervisor import Supervisor

    context, node = _context(client), options.node
    commands = _NodeCommands(client.settings.store, options)
    host = LocalHost(context, node, options.slots, commands, tmux)
    role = Supervisor(context, options, host)
    _heed(
        lambda: _told(f"{node} drains: running jobs end first; again to stop them", role.drain),
        lambda: _told(f"{node} stops its jobs", role.stop_jobs),
    )
    return role.run(begun=partial(_say_what_is_served, client, options, tmux))


def _say_what_is_served(client: Client, options: SupervisorOptions, tmux: str) -> None:
    kinds = {slot.kind for slot in options.slots.values()}
    count = len(options.slots)
    say(
        f"gpuq: node {options.node} serves pool {options.pool} with {count} "
        f"{'/'.join(sorted(kinds)).upper()} slot{'' if count == 1 else 's'}, ledger at "
        f"{client.store.url}; Ctrl-C drains"
        + (f"; 'tmux attach -t {tmux}' shows the workers" if tmux else "")
    )


class _NodeCommands:
    """How this gpuq starts the processes of a node; ``roles.host.Commands``."""

    def __init__(self, store: StoreChoice, options: SupervisorOptions) -> None:
        self._store = store
        self._options = options

    def workers(self, slots: Mapping[WorkerName, Slot]) -> list[str]:
        options = self._options
        price = ["--price-micros", str(options.price_micros)] if options.price_micros else []
        served = [
            word
            for worker, slot in slots.items()
            for word in ("--worker", worker, "--slot", msgspec.json.encode(slot).decode())
        ]
        return [
            *_command(self._store), "worker", "--node", options.node, "--pool", options.pool,
            *price, *served,
        ]  # fmt: skip

    def leaving(self, worker: WorkerName, slot: Slot) -> list[str]:
        return [*self.workers({worker: slot}), "--leaving"]

    def dispatcher(self) -> list[str]:
        return [*_command(self._store), "dispatcher", "--node", self._options.node]


def dispatcher(context: typer.Context, *, node: NodeOption = "") -> None:
    """Lead where nobody else does, without running any jobs."""
    from roles.dispatcher import Dispatcher
    from roles.locks import FileLock
    from roles.notices import Notices
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
    notices = Notices(role_context)
    try:
        Dispatcher(
            role_context,
            name,
            LocalNeighbours(role_context, name),
            stopping=lambda: bool(stopping),
            notices=notices,
        ).run()
    finally:
        notices.close()
        lock.release()


def worker(
    context: typer.Context,
    *,
    node: Annotated[str, typer.Option("--node")],
    pool: Annotated[str, typer.Option("--pool")],
    worker: Annotated[list[str], typer.Option("--worker", help="Repeatable, with a --slot each.")],
    slot: Annotated[list[str], typer.Option("--slot", help="JSON, as the ledger has it.")],
    leaving: Annotated[bool, typer.Option("--leaving", help="End what is underway there.")] = False,
    price_micros: Annotated[int, typer.Option("--price-micros", min=0)] = 0,
) -> None:
    """Serve one slot, or several by one process; started by the supervisor."""
    from roles.devices import GpuReader, gpus_of_slots
    from roles.processes import identity_of
    from roles.service import WorkerOptions
    from roles.worker_process import serve, serve_together

    client = connect(settings_of(context))
    _log_to_stderr()
    if len(worker) != len(slot):
        raise RequestError("each --worker needs a --slot, in the same order")
    slots = {_check_worker(name): _read_slot(text) for name, text in zip(worker, slot, strict=True)}
    reader = GpuReader()
    all_options = [
        WorkerOptions(
            worker=name,
            node=NodeName(check_name("node", node)),
            pool=check_name("pool", pool),
            slot=served,
            job_base=_job_base(client.settings, served, reader),
            leaving=leaving,
            price_micros=price_micros,
            process=identity_of(os.getpid()),
        )
        for name, served in slots.items()
    ]
    if len(all_options) > 1:
        serve_together(_context(client), all_options)
        return
    (options,) = all_options
    read_gpus = (
        partial(gpus_of_slots, reader, options.node, options.slot)
        if options.slot.kind == "gpu"
        else dict
    )
    serve(_context(client), options, read_gpus)


def _check_worker(name: str) -> WorkerName:
    if not WORKER.fullmatch(name):
        raise RequestError(f"{name!r} is not a worker: say NODE-gpuN or NODE-cpuN")
    return WorkerName(name)


def _job_base(settings: Settings, slot: Slot, reader: GpuReader) -> JobBase:
    from roles.devices import is_mig, mig_uuids
    from roles.jobplan import JobBase, safe_env
    from roles.processes import boot_id

    uuids: dict[int, str] = {}
    if is_mig(slot.gpu_uuid):
        uuids = {**mig_uuids(reader.read()), slot.index: slot.gpu_uuid}
    return JobBase(
        boot_id=boot_id(),
        env=safe_env(os.environ),
        secrets_dir=settings.secrets_dir,
        mig_uuids=uuids,
    )


# --- what a supervisor is told


def _check_tmux_session(name: str) -> None:
    if name and not _TMUX_SESSION.fullmatch(name):
        raise RequestError(f"--tmux {name!r} is no session's name: use a-z, A-Z, 0-9, '-' and '_'")


def _idleness(settings: Settings, idle_exit: str, on_idle: str) -> Idleness | None:
    from roles.idle import Idleness

    if on_idle and not idle_exit:
        raise RequestError("--on-idle needs to know when: give --idle-exit, such as 30m")
    if not idle_exit:
        return None
    return Idleness(SystemClock(), settings.state_dir, parse_duration(idle_exit))


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
    from roles.devices import choose_gpus

    if chosen := choose_gpus(gpus or "all", reader):
        return _gpu_slots(node, chosen)
    if gpus:
        raise RequestError("this machine has no GPU that NVML knows: use --slots N")
    return _cpu_slots(node, min(CPU_SLOTS_DEFAULT, os.cpu_count() or 1))


def _cpu_slots(node: NodeName, count: int) -> Mapping[WorkerName, Slot]:
    return {worker_name(node, "cpu", i): Slot(kind="cpu", index=i) for i in range(count)}


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


# --- processes


def _context(client: Client) -> Context:
    from roles.context import Context
    from roles.processes import machine_id

    state_dir = client.settings.state_dir
    try:
        machine = machine_id(state_dir)
    except OSError as error:
        raise disk_refused(state_dir, error) from error
    return Context(
        store=client.store,
        ledger=client.ledger,
        clock=client.clock,
        rng=client.rng,
        timings=client.settings.timings,
        state_dir=state_dir,
        host=client.settings.host,
        machine=machine,
    )


def _command(choice: StoreChoice) -> list[str]:
    """How this gpuq is called again for the same store."""
    flags = {
        "--store": choice.name or choice.url,
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


class _Stderr(io.TextIOBase):
    """stderr, as far as it can be written: a full disk behind it must end no role."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _log_to_stderr() -> None:
    """One line an event, with its UTC time; readable, and plain enough for grep."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
    )
