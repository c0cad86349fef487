"""What gpuq promises to put on the wire, as a list of what a request does wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ALLOWED_METHODS = {"GET", "PUT"}
_FORBIDDEN_HEADERS = {
    "expect": "asks for 100-continue",
    "transfer-encoding": "is sent in chunks",
    "content-encoding": "has an encoded body",
    "x-amz-trailer": "has a checksum trailer",
    "x-amz-decoded-content-length": "has a framed body",
    "x-amz-sdk-checksum-algorithm": "names a checksum algorithm",
}


def find_faults(method: str, target: str, headers: Iterable[tuple[str, str]]) -> list[str]:
    """Each broken promise of one object request, in words; empty where it keeps them all."""
    sent: Mapping[str, str] = {name.lower(): text for name, text in headers}
    faults = [text for name, text in _FORBIDDEN_HEADERS.items() if name in sent]
    faults += [f"carries {name}" for name in sent if name.startswith("x-amz-checksum-")]
    if sent.get("x-amz-content-sha256", "").startswith("STREAMING"):
        faults.append("has a framed body")
    if method not in ALLOWED_METHODS:
        faults.append(f"is a {method}")
    if method == "PUT" and sent.get("if-none-match") != "*":
        faults.append("is an unconditional PUT")
    if "uploads" in target.partition("?")[2] or "uploadId" in target:
        faults.append("is a multipart upload")
    return faults
