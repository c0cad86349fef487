"""What a key may look like, checked on the way into every store and on the way out.

Owns the character set that all stores can hold: segments of ``A-Z a-z 0-9 . _ ~ -``
between single slashes, at most 255 bytes each (a file name's limit), none of them hidden.
So a key can neither leave the store's folder nor be taken for a temporary file, and
comparing keys as text is comparing their bytes.
"""

from __future__ import annotations

import re

KEY_MAX_BYTES = 900
"""Below S3's 1,024, so that a store's own prefix fits before it."""

_SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,254}"
_SEGMENT_ONLY = re.compile(_SEGMENT)
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


def is_segment(name: str) -> bool:
    """Whether ``name`` can stand between two slashes of a key."""
    return _SEGMENT_ONLY.fullmatch(name) is not None


def is_key(name: str) -> bool:
    """Whether ``name`` can be a key; what cannot is no part of a ledger."""
    return len(name) <= KEY_MAX_BYTES and _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """``key`` itself. Raises ValueError: keys are made by code, never by a user."""
    if not is_key(key):
        raise ValueError(f"not a key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix`` itself: the beginning of a key, or empty. Raises ValueError."""
    if len(prefix) > KEY_MAX_BYTES or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"not the beginning of a key: {prefix!r}")
    return prefix
