"""How a bucket is entered where boto3's usual chain shall not decide.

Owns secrets in memory, and shows none of them. Nothing here is ever written.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Login:
    """Keys, or the profile to take them from; empty: boto3's usual chain."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    profile: str = ""
    virtual_host: bool | None = None
    """Whether the bucket's name is part of the host's; None: only where no endpoint is given."""
