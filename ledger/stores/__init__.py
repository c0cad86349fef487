"""Stores: the append-only map from key to bytes that a ledger stands in.

Owns the reading of a store's URL. boto3 is imported only when a bucket is opened, because
its import costs more than the rest of a short command.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from urllib.parse import unquote

from ledger.clock import Clock
from ledger.errors import RequestError
from ledger.stores.directory import DirectoryStore
from ledger.stores.login import Login
from ledger.stores.naming import is_key
from ledger.stores.settling import SettlingStore

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_PREFIX_MAX_BYTES = 100
_FORMS = "say s3://bucket/prefix, file:///absolute/path or /absolute/path"


def open_store(
    url: str,
    *,
    clock: Clock,
    rng: random.Random,
    endpoint_url: str | None = None,
    region: str | None = None,
    ca_bundle: str | None = None,
    login: Login | None = None,
    requests_per_second: int = 200,
) -> SettlingStore:
    """The store at ``url``; nothing is asked of it or created yet.

    ``endpoint_url``, ``region``, ``ca_bundle`` and ``login`` concern buckets only, as does
    ``requests_per_second``, the most that this process will ask of one. Raises
    RequestError where ``url`` names no store.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DirectoryStore(_absolute(url, url), clock=clock, rng=rng)
    if scheme == "file":
        return DirectoryStore(_absolute(unquote(rest), url), clock=clock, rng=rng)
    if scheme != "s3":
        raise RequestError(f"{url!r} is no store: {_FORMS} (a server's address is --endpoint-url)")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise RequestError(f"{bucket!r} is not the name of a bucket: {_FORMS}")
    prefix = prefix.rstrip("/")
    if prefix and not (is_key(prefix) and len(prefix) <= _PREFIX_MAX_BYTES):
        raise RequestError(
            f"{prefix!r} cannot be a prefix: use at most {_PREFIX_MAX_BYTES} characters of "
            "A-Z a-z 0-9 . _ ~ - and single slashes, and begin no part with a dot"
        )

    from ledger.stores.s3 import S3Address, S3Store

    address = S3Address(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint_url,
        region=region,
        ca_bundle=ca_bundle,
        login=login or Login(),
        requests_per_second=requests_per_second,
    )
    return S3Store(address, clock=clock, rng=rng)


def _absolute(path: str, url: str) -> Path:
    if not path.startswith("/") or "\0" in path:
        raise RequestError(f"{url!r} is no absolute path: {_FORMS}")
    return Path(path)
