"""The store that is a bucket, on AWS S3 and on servers that speak its protocol.

Owns everything that knows boto3: the clients, their time-outs, and the translation of
what they raise. Every PUT carries ``If-None-Match: *``; there is no DELETE, no multipart
upload, no checksum framing and no ``Expect`` header, each of which some server answers
wrongly. Credentials come from boto3's usual chain (environment, profile, instance role).

No client retries by itself: a hidden retry would turn Won into Lost, and ``SettlingStore``
waits out the rest on the injected clock. The clients differ in time-outs only. Requests are
counted, and their budget taken, in a hook at the wire, so that no attempt escapes either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from ledger.clock import Clock
from ledger.errors import GpuqError, LedgerError, RequestError, TransientError
from ledger.keys import LEDGER
from ledger.stores.base import Entry
from ledger.stores.login import Login
from ledger.stores.naming import check_prefix, is_key
from ledger.stores.pacing import RequestBudget, ServerClock
from ledger.stores.s3_errors import PRECONDITION_FAILED, Reply, find_date_ms, meaning
from ledger.stores.settling import NotSentError, Sender, SettlingStore

LIST_PAGE_KEYS = 1000
READERS = 8
"""Threads of ``get_many``."""

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = {Sender.DECIDING: 10, Sender.PATIENT: 20, Sender.PROBING: 30}
"""Longest silence of the server within one answer."""
_CONNECTIONS = 32

_STORE_ERRORS = (ClientError, BotoCoreError, ResponseParserError, HTTPError)
_NOT_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
_NO_NEWS = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    CredentialRetrievalError,
    ResponseParserError,
    HTTPError,
)


class S3Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bucket is. ``prefix`` is empty or a key without a slash at its end.

    ``endpoint_url``, ``region`` and ``ca_bundle`` (a file of certificates) fall back to
    what boto3 finds in its environment and profile.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    ca_bundle: str | None = None
    login: Login = Login()
    requests_per_second: int = 200


class S3Store(SettlingStore):
    """A bucket, or what is below a prefix of it. Thread-safe; makes no request by itself."""

    def __init__(self, address: S3Address, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(clock=clock, rng=rng)
        self._bucket = address.bucket
        self._base = f"{address.prefix}/" if address.prefix else ""
        self.url = f"s3://{address.bucket}/{address.prefix}".rstrip("/")
        self._budget = RequestBudget(clock, address.requests_per_second)
        self._server_clock = ServerClock(clock)
        if address.ca_bundle is not None and not Path(address.ca_bundle).is_file():
            raise RequestError(f"{address.ca_bundle} is not there: correct the CA bundle's path")
        try:
            session = _session(address.login)
            self._clients = {sender: self._client(session, address, sender) for sender in Sender}
        except (BotoCoreError, ValueError) as error:
            raise RequestError(f"{self.url}: {error}: correct the S3 settings") from error
        self._patient = self._clients[Sender.PATIENT]

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """See ``Store.list``. Raises LedgerError where the server's order is not bytewise."""
        last = ""
        for entry in self.list_raw(prefix, start_after, LIST_PAGE_KEYS):
            if entry.key <= last:
                raise LedgerError(
                    f"{self.url} lists {entry.key} after {last}, which is not byte order: "
                    "`gpuq doctor` says what this server can hold"
                )
            last = entry.key
            yield entry

    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        check_prefix(prefix)
        check_prefix(start_after)
        asked: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._base + prefix,
            "MaxKeys": page_keys,
        }
        if start_after:
            asked["StartAfter"] = self._base + start_after
        while True:
            page = self._await_news(lambda: self._list_page(asked))
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._base)
                if is_key(key):
                    yield Entry(key, found["Size"])
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        if len(keys) < 2:
            return super().get_many(keys)
        with ThreadPoolExecutor(min(READERS, len(keys))) as readers:
            return tuple(readers.map(self.get, keys))

    def clock_ms(self) -> int:
        """The server's clock; costs a request only before the first answer of any kind."""
        now_ms = self._server_clock.find_now_ms()
        if now_ms is None:
            self.get(LEDGER)
            now_ms = self._server_clock.find_now_ms()
        if now_ms is None:
            raise RequestError(f"{self.url}: the server's answers carry no Date: use another one")
        return now_ms

    def versioning(self) -> bool | None:
        try:
            answer = self._patient.get_bucket_versioning(Bucket=self._bucket)
        except ClientError:
            return None
        except _STORE_ERRORS as error:
            raise self._translated(error) from error
        # "Suspended" keeps the old versions, and their delete markers, as well.
        return "Status" in answer

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        try:
            self._clients[sender].put_object(
                Bucket=self._bucket, Key=self._base + key, Body=body, IfNoneMatch="*"
            )
        except ClientError as error:
            if _status(error) == PRECONDITION_FAILED:
                return False
            raise self._translated(error) from error
        except _STORE_ERRORS as error:
            raise self._translated(error) from error
        return True

    def _read(self, key: str) -> bytes | None:
        try:
            answer = self._patient.get_object(Bucket=self._bucket, Key=self._base + key)
            body: bytes = answer["Body"].read()
        except ClientError as error:
            if Reply.of(error.operation_name, error.response).is_absent():
                return None
            raise self._translated(error) from error
        except _STORE_ERRORS as error:
            raise self._translated(error) from error
        return body

    def _list_page(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            page: Mapping[str, Any] = self._patient.list_objects_v2(**asked)
        except _STORE_ERRORS as error:
            raise self._translated(error) from error
        return page

    def _client(self, session: boto3.session.Session, address: S3Address, sender: Sender) -> Any:
        client = session.client(
            "s3",
            endpoint_url=address.endpoint_url,
            region_name=address.region,
            verify=address.ca_bundle,
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S[sender],
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=_CONNECTIONS,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3=_addressing(address),
            ),
        )
        client.meta.events.unregister("before-call.s3", add_expect_header)
        client.meta.events.register("before-send.s3", self._before_send)
        client.meta.events.register("response-received.s3", self._after_answer)
        return client

    def _before_send(self, request: Any, **_: Any) -> None:
        self._budget.take()
        is_list = request.method == "GET" and "list-type=2" in request.url
        self._counts.add("LIST" if is_list else request.method)

    def _after_answer(self, parsed_response: Any, **_: Any) -> None:
        if parsed_response is not None:
            date_ms = find_date_ms(parsed_response["ResponseMetadata"]["HTTPHeaders"])
            if date_ms is not None:
                self._server_clock.observe(date_ms)

    def _translated(self, error: Exception) -> GpuqError:
        if isinstance(error, ClientError):
            reply = Reply.of(error.operation_name, error.response)
            return meaning(reply, url=self.url, wall_ms=self._clock.wall_ms())
        if isinstance(error, NoCredentialsError):
            return RequestError(
                f"{self.url}: no credentials found: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return RequestError(
                f"{self.url}: the server's certificate is not trusted: give its authority as "
                f"CA bundle ({error})"
            )
        if isinstance(error, _NOT_SENT):
            return NotSentError(f"{self.url}: {error}")
        if isinstance(error, _NO_NEWS):
            return TransientError(f"{self.url}: {error}")
        return RequestError(f"{self.url}: {error}: correct the S3 settings")


def _session(login: Login) -> boto3.session.Session:
    return boto3.session.Session(
        aws_access_key_id=login.access_key or None,
        aws_secret_access_key=login.secret_key or None,
        aws_session_token=login.session_token or None,
        profile_name=login.profile or None,
    )


def _addressing(address: S3Address) -> Any:
    if address.login.virtual_host is not None:
        return {"addressing_style": "virtual" if address.login.virtual_host else "path"}
    return {"addressing_style": "path"} if address.endpoint_url else None


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
