"""Names and ids: what they are made of, and the one place that checks them.

Names of nodes, pools and organizations are ``[a-z0-9-]{1,63}``; a worker is
``<node>-gpu<i>`` or ``<node>-cpu<i>``; a job id is eight characters of base32; a writer
is ``<name>~<incarnation>``. Refuses everything else with the mend.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
from typing import NewType

from ledger.errors import RequestError

JobId = NewType("JobId", str)
FlowId = NewType("FlowId", str)
WorkerName = NewType("WorkerName", str)
NodeName = NewType("NodeName", str)
WriterName = NewType("WriterName", str)
Seq = NewType("Seq", int)
Epoch = NewType("Epoch", int)

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
NAME = re.compile(r"[a-z0-9-]{1,63}")
WORKER = re.compile(r"([a-z0-9-]{1,63})-(gpu|cpu)(0|[1-9][0-9]{0,4})")
JOB_ID = re.compile(r"[a-z2-7]{8}")
WRITER = re.compile(r"([a-z0-9-]{1,80})~([a-z2-7]{8})")


def check_name(what: str, name: str) -> str:
    """``name`` itself, or RequestError that says what a name of a ``what`` is made of."""
    if NAME.fullmatch(name):
        return name
    raise RequestError(f"{what} {name!r} is not a name: use 1 to 63 characters of a-z, 0-9 and '-'")


def as_name(text: str) -> str:
    """The nearest valid name: cut at the dot, lower case, other characters become '-'."""
    short = re.sub(r"[^a-z0-9-]", "-", text.split(".", 1)[0].lower()).strip("-")
    return short[:63] or "unnamed"


def worker_name(node: NodeName, kind: str, index: int) -> WorkerName:
    """``node1-gpu0``; ``kind`` is ``gpu`` or ``cpu``."""
    return WorkerName(f"{node}-{kind}{index}")


def token(rng: random.Random, length: int = 8) -> str:
    """``length`` random characters of base32 (5 bits each)."""
    return "".join(rng.choice(BASE32) for _ in range(length))


def new_job_id(rng: random.Random) -> JobId:
    """A random job id (40 bits)."""
    return JobId(token(rng))


def keyed_job_id(ledger: str, organization: str, key: str) -> JobId:
    """The job id that ``--key`` stands for: the same three always give the same id."""
    digest = hashlib.sha256("\0".join((ledger, organization, key)).encode()).digest()
    return JobId(base64.b32encode(digest[:5]).decode().lower())


def flow_id(organization: str, workload_class: str, pool: str) -> FlowId:
    """``organization/class/pool``: the unit between which fairness holds."""
    return FlowId(f"{organization}/{workload_class}/{pool}")


def flow_parts(flow: FlowId) -> tuple[str, str, str]:
    """Organization, class and pool of a flow; anything where those are no valid names."""
    organization, workload_class, pool = flow.split("/", 2)
    return organization, workload_class, pool
