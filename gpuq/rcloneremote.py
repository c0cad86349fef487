"""``--store rclone:REMOTE:bucket/prefix``: an S3 remote of the user's rclone configuration.

Owns the reading of that file: https://rclone.org/s3/ and https://rclone.org/docs/ say what
stands there. Only how a bucket is reached is taken from it; gpuq speaks S3 itself and never
runs rclone. The file is only read, and its keys go nowhere but into the requests.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ledger.errors import RequestError
from ledger.stores.login import Login

SCHEME = "rclone:"

_ENCRYPTED = "RCLONE_ENCRYPT_V"
_NO_PATH_STYLE = ("Alibaba", "HuaweiOBS", "TencentCOS")
"""Providers that refuse addresses in which the bucket is part of the path."""


class Remote(NamedTuple):
    """A bucket as the store knows it. ``endpoint_url`` and ``region`` may be None: boto3's."""

    url: str
    endpoint_url: str | None
    region: str | None
    login: Login


def read_remote(text: str, environ: Mapping[str, str]) -> Remote:
    """What ``rclone:REMOTE:bucket/prefix`` stands for. Raises RequestError, with the mend."""
    name, colon, path = text.removeprefix(SCHEME).partition(":")
    if not (name and colon and path.strip("/")) or "," in name:
        raise RequestError(f"{text!r} is no store: say rclone:REMOTE:bucket/prefix")
    options = _Options(name, environ)
    kind = options["type"]
    if kind != "s3":
        raise RequestError(
            f"the rclone remote {name!r} is of type {kind!r}: only remotes of type s3 can hold a "
            "ledger; name the one behind it"
        )
    if options.is_set("v2_auth") or options["region"] == "other-v2-signature":
        raise RequestError(f"the rclone remote {name!r} signs by version 2, which gpuq does not")
    endpoint = options["endpoint"]
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    region = options["region"] or ("us-east-1" if endpoint else "")
    return Remote(
        url=f"s3://{path.strip('/')}",
        endpoint_url=endpoint or None,
        region=region or None,
        login=_login(options, name),
    )


def _login(options: _Options, name: str) -> Login:
    virtual_host = None
    if options["force_path_style"]:
        virtual_host = not options.is_set("force_path_style")
    elif options["provider"] in _NO_PATH_STYLE:
        virtual_host = True
    access_key, secret_key = options["access_key_id"], options["secret_access_key"]
    if bool(access_key) != bool(secret_key):
        raise RequestError(f"the rclone remote {name!r} has only one half of a key: mend it")
    if access_key:
        return Login(
            access_key=access_key,
            secret_key=secret_key,
            session_token=options["session_token"],
            virtual_host=virtual_host,
        )
    if not options.is_set("env_auth"):
        raise RequestError(
            f"the rclone remote {name!r} has no key: set access_key_id and secret_access_key, or "
            "env_auth = true"
        )
    if options["shared_credentials_file"]:
        raise RequestError(
            f"the rclone remote {name!r} names a shared_credentials_file: set "
            "AWS_SHARED_CREDENTIALS_FILE instead"
        )
    return Login(profile=options["profile"], virtual_host=virtual_host)


class _Options:
    """One remote's options; what is not set is empty. A variable counts more than the file."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._variables = f"RCLONE_CONFIG_{name.upper()}_"
        path = _find_file(environ)
        self._section: Mapping[str, str] = {}
        if path is not None:
            file = _read_file(path)
            if name in file:
                self._section = file[name]
        if not self["type"]:
            where = path if path is not None else "no rclone.conf was found"
            raise RequestError(f"there is no rclone remote {name!r} ({where}): see 'rclone config'")

    def __getitem__(self, option: str) -> str:
        said = self._environ.get(self._variables + option.upper())
        return (said if said is not None else self._section.get(option, "")).strip()

    def is_set(self, option: str) -> bool:
        return self[option].lower() in ("1", "t", "true")


def _find_file(environ: Mapping[str, str]) -> Path | None:
    """Where rclone looks, but for the folder of its own program."""
    if environ.get("RCLONE_CONFIG"):
        return Path(environ["RCLONE_CONFIG"])
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (config / "rclone" / "rclone.conf", home / ".rclone.conf")
    return next((place for place in places if place.is_file()), None)


def _read_file(path: Path) -> configparser.RawConfigParser:
    file = configparser.RawConfigParser(strict=False, delimiters=("=",), default_section="")
    try:
        text = path.read_text(encoding="utf-8")
        if any(line.startswith(_ENCRYPTED) for line in text.splitlines()[:5]):
            raise RequestError(
                f"{path} is encrypted: gpuq does not ask for its password; give the store as "
                "s3://bucket/prefix with --endpoint-url and AWS_ACCESS_KEY_ID, or name a plain "
                "file in RCLONE_CONFIG"
            )
        file.read_string(text)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, configparser.Error) as error:
        raise RequestError(f"{path} is no rclone configuration: mend it") from error
    return file
