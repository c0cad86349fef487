"""Who a process is, what belongs to a job's tree, and which machine this is.

Owns every look into /proc and every signal that gpuq sends. Standard library only,
because the runner lives for days and imports it. It refuses to signal a process that it
cannot identify: pid, start ticks and boot id must all agree.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Identity(NamedTuple):
    """A process, told apart from every other that has had or will have its number."""

    pid: int
    start_ticks: int
    """Field 22 of ``/proc/<pid>/stat``: clock ticks from boot to its start."""
    boot_id: str


class _Stat(NamedTuple):
    state: str
    parent: int
    start_ticks: int

    @property
    def runs(self) -> bool:
        """False for a zombie: it executes nothing and only waits to be reaped."""
        return self.state not in "ZX"


def boot_ms() -> int:
    """Milliseconds since boot, suspended time included."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


@functools.cache
def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none (not Linux)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def identity_of(pid: int) -> Identity | None:
    """The process that has this number now (a zombie too), or None."""
    stat = _read_stat(pid)
    return None if stat is None else Identity(pid, stat.start_ticks, boot_id())


def is_alive(identity: Identity) -> bool:
    """Whether exactly that process still executes; a zombie does not."""
    stat = _read_stat(identity.pid)
    return (
        stat is not None
        and stat.runs
        and identity.start_ticks == stat.start_ticks
        and identity.boot_id == boot_id()
    )


def signal_process(identity: Identity, signum: int) -> bool:
    """Signal exactly that process; False if it is gone, or the kernel forbids it.

    The pidfd is opened before the comparison, so that a number which is reused in between
    is not hit. Without pidfds (macOS, a sandbox) a gap of microseconds remains.
    """
    handle = None
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        pass
    try:
        if identity_of(identity.pid) != identity:
            return False
        if handle is None:
            os.kill(identity.pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def find_tree(roots: Collection[Identity], token: str) -> set[Identity]:
    """The running processes of one attempt of a job; never the caller itself.

    They are ``roots``, every process with ``GPUQ_TOKEN=token`` in its environment, and all
    descendants of both. One pass over /proc, so a process that forks meanwhile may be
    missed: call again until nothing is found.
    """
    stats = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _read_stat(int(name))) is not None:
            stats[int(name)] = stat
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    here = boot_id()
    pending = [
        pid
        for pid, stat in stats.items()
        if Identity(pid, stat.start_ticks, here) in roots or _carries(pid, token)
    ]
    found = set()
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    found.discard(os.getpid())
    return {Identity(pid, stats[pid].start_ticks, here) for pid in found if stats[pid].runs}


class Killed(NamedTuple):
    """What became of a tree: gone after a KILL, or still there after all patience."""

    gone: set[Identity]
    left: set[Identity]


def kill_tree(
    find: Callable[[], set[Identity]],
    patience_ms: int,
    *,
    quiet_ms: int = 0,
    has_children: Callable[[], bool] = lambda: False,
) -> Killed:
    """KILL what ``find`` finds until it finds nothing, for at most ``patience_ms``.

    One look is not enough: in the midst of an exec a process shows no environment. A
    sub-reaper gives ``has_children``, which reaps and says whether something must be there
    even if ``find`` has just missed it; others look again for ``quiet_ms``.
    """
    hit: set[Identity] = set()
    last_seen_ms = boot_ms()
    give_up_ms = last_seen_ms + patience_ms
    while True:
        more = has_children()
        alive = find()
        now_ms = boot_ms()
        if alive or more:
            last_seen_ms = now_ms
        elif now_ms - last_seen_ms >= quiet_ms:
            return Killed(hit, set())
        if now_ms >= give_up_ms:
            return Killed(hit - alive, alive)
        for identity in alive:
            signal_process(identity, signal.SIGKILL)
        hit |= alive
        time.sleep(0.01)


def _read_stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets and spaces included.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def _carries(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"GPUQ_TOKEN={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's


def oom_kills() -> int | None:
    """How often the kernel killed for want of memory, in this cgroup or on this machine.

    None where the kernel does not tell.
    """
    for path in (*_cgroup_oom_files(), "/proc/vmstat"):
        try:
            with open(path, encoding="ascii") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except OSError:
            continue
    return None


def _cgroup_oom_files() -> list[str]:
    paths = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            paths.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            # In a container the path is the host's, but the mount is the container's.
            paths.append("/sys/fs/cgroup/memory/memory.oom_control")
    return paths


def machine_id(state_dir: Path) -> str:
    """``<random>.<host name>.<id of the installation>``: the same after a restart.

    Containers and virtual machines made from one image share ``/etc/machine-id``, and one
    in which gpuq had already run shares the random part too; a state folder on a network
    file system is shared by machines that differ in the rest. Two of them must never pass
    for one, because a machine takes over what "it" left running; so all three parts count,
    the random one being made once and kept in ``state_dir``. The error is on the safe
    side: a container that is made anew with another host name counts as another machine,
    and waits until its former self has been silent for long enough. The id of the boot is
    no part, or every restart would have to wait like that. Clones that also share the host
    name are not told apart: give each its own node name.
    """
    path = state_dir / "machine-id"
    if not path.exists():
        state_dir.mkdir(parents=True, exist_ok=True)
        _create_once(path, os.urandom(8).hex())
    installation = Path("/etc/machine-id")
    installed = installation.read_text().strip() if installation.exists() else ""
    return ".".join((path.read_text().strip(), os.uname().nodename, installed[:16] or "none"))


def _create_once(path: Path, text: str) -> None:
    """Create ``path`` whole and durably, unless another process was first."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
