"""Names of environment variables: which gpuq sets itself, and which look like secrets.

Values of the latter are never written into a ledger, where nothing can be unwritten.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = re.compile(r"GPUQ_.*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER")
_SECRET = re.compile(
    r"AWS_.*|.*(SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL).*|.*TOKEN|(.*(_|API|ACCESS|PRIVATE))?KEY",
    re.IGNORECASE,
)
_OPEN = frozenset(
    {"AWS_CA_BUNDLE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
     "AWS_PROFILE", "AWS_REGION"}
)  # fmt: skip
"""They look like secrets and are none."""


def is_variable(name: str) -> bool:
    """Whether a shell could set it."""
    return _NAME.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """Whether gpuq sets it for each job."""
    return _RESERVED.fullmatch(name) is not None


def looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds what nobody else may know."""
    return _SECRET.fullmatch(name) is not None and name.upper() not in _OPEN
