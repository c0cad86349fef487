"""What a refusal by an S3 server means to gpuq: retry, change the set-up, or stop.

Owns the reading of status codes and S3 error codes, free of botocore so that a table test
can hold it. What it does not know is a RequestError that carries the server's own words,
except 5xx and 429, which are always "no news": Hetzner throttles with a 429 whose body is
HTML, so that boto3 shows an empty error code.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ledger.errors import GpuqError, RequestError, TransientError
from ledger.timings import MINUTE_MS

CONFLICT = 409
"""Nothing was stored and the server asks for another try."""
PRECONDITION_FAILED = 412

_RIGHTS = {
    "GetObject": "s3:GetObject on its objects and s3:ListBucket on the bucket (without the "
    "latter a missing object reads as refused)",
    "ListObjectsV2": "s3:ListBucket on the bucket",
    "PutObject": "s3:PutObject on its objects",
}
_THROTTLED_STATUS = {408, 429}
_TRANSIENT_CODES = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"}
_MENDS = {
    "NoSuchBucket": "there is no such bucket: create it, or correct the name and the endpoint",
    "InvalidBucketName": "the server refuses the bucket's name: correct it",
    "InvalidAccessKeyId": "the server does not know the access key: correct AWS_ACCESS_KEY_ID, "
    "the profile or the endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY or the "
    "profile",
    "ExpiredToken": "the session's credentials have expired: renew them",
    "InvalidToken": "the session token is not valid: renew the credentials",
    "QuotaExceeded": "the quota of the bucket or its owner is used up: raise it",
    "AuthorizationHeaderMalformed": "the region is wrong: set the bucket's own region",
    "IllegalLocationConstraintException": "the region is wrong: set the bucket's own region",
    "PermanentRedirect": "the bucket is in another region: set its own region",
    "NotImplemented": "the server lacks what gpuq needs (conditional writes, ListObjectsV2): "
    "use another one",
}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A server's refusal: HTTP status, S3 error code and message (either may be empty)."""

    operation: str
    status: int
    code: str
    message: str
    date_ms: int | None
    is_html: bool

    @staticmethod
    def of(operation: str, response: Mapping[str, Any]) -> Reply:
        """From the ``response`` of a botocore ClientError."""
        error = response.get("Error", {})
        metadata = response.get("ResponseMetadata", {})
        headers = metadata.get("HTTPHeaders", {})
        return Reply(
            operation=operation,
            status=metadata.get("HTTPStatusCode", 0),
            code=error.get("Code") or "",
            message=error.get("Message") or "",
            date_ms=find_date_ms(headers),
            is_html=headers.get("content-type", "").startswith("text/html"),
        )

    def is_absent(self) -> bool:
        """Whether this says that the object is not there (yet).

        A 404 page of a proxy on the way says nothing about the object.
        """
        return (
            self.status == 404
            and self.code in {"NoSuchKey", "NotFound", "404"}
            and (not self.is_html)
        )


def find_date_ms(headers: Mapping[str, str]) -> int | None:
    """The ``Date`` of an answer (header names in lower case), milliseconds since the epoch."""
    try:
        moment = parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return None
    # "GMT" parses as aware and "-0000" as naive; both are UTC.
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def meaning(reply: Reply, *, url: str, wall_ms: int) -> GpuqError:
    """The error to raise for ``reply``.

    ``url`` is the store's, for the message; ``wall_ms`` this machine's clock, for the skew.
    """
    if reply.code == "RequestTimeTooSkewed":
        return RequestError(f"{url}: {_skew(reply, wall_ms)}; set this machine's clock (NTP)")
    mend = _MENDS.get(reply.code)
    if mend is not None:
        return RequestError(f"{url}: {mend}")
    said = f"{reply.status} {reply.code} {reply.message}".strip()
    if reply.status == 403:
        right = _RIGHTS.get(reply.operation, reply.operation)
        return RequestError(f"{url}: the server says {said}: grant this key {right}")
    if (
        reply.status >= 500
        or reply.status in _THROTTLED_STATUS | {CONFLICT}
        or reply.code in _TRANSIENT_CODES
        or reply.is_html
    ):
        return TransientError(f"{url}: the server says {said}")
    return RequestError(f"{url}: the server refuses {reply.operation}: {said}")


def _skew(reply: Reply, wall_ms: int) -> str:
    if reply.date_ms is None:
        return "the server refuses requests because this machine's clock is too far off"
    ahead_minutes = round((wall_ms - reply.date_ms) / MINUTE_MS)
    direction = "ahead of" if ahead_minutes > 0 else "behind"
    server = datetime.fromtimestamp(reply.date_ms / 1000, UTC)
    return (
        f"this machine's clock is {abs(ahead_minutes)} minutes {direction} the server's "
        f"({server:%Y-%m-%d %H:%M} UTC), which therefore refuses its requests"
    )
