"""Where settings come from: a flag, then an environment variable, then the file, then a default.

Owns the configuration file, the names of the environment variables and the local folders
(XDG). Only here is the environment read; everything below gets values. The file holds no
secrets: credentials come from boto3's usual chain.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuq.rcloneremote import SCHEME, read_remote
from ledger.errors import RequestError
from ledger.names import as_name, check_name
from ledger.stores.login import Login
from ledger.timings import Timings


class StoreFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What was said on the command line; None where nothing was."""

    store: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    ca_bundle: str | None = None


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of gpuq was given."""

    flags: StoreFlags
    environ: Mapping[str, str]

    def with_flags(self, flags: StoreFlags) -> Invocation:
        """The same call, told also ``flags``, which count more."""
        said = {name: value for name, value in msgspec.structs.asdict(flags).items() if value}
        return msgspec.structs.replace(self, flags=msgspec.structs.replace(self.flags, **said))


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration file; empty strings mean "not there"."""

    store: str = ""
    endpoint_url: str = ""
    region: str = ""
    ca_bundle: str = ""
    organization: str = ""
    pool: str = ""


class StoreChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which store, how it is reached, and who said so."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    ca_bundle: str | None = None
    login: Login | None = None
    name: str = ""
    """What it is called where it is named again, if not ``url``."""
    source: str
    is_default: bool = False
    """It is the folder that needs no configuration, and is made on first use."""


class Setting(msgspec.Struct, frozen=True):
    """A value and who said so, as ``submit --explain`` shows it."""

    value: str
    source: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a command is told by its surroundings."""

    store: StoreChoice
    user: Setting
    organization: Setting
    pool: Setting
    host: str
    timings: Timings
    state_dir: Path
    config_path: Path
    file: ConfigFile

    @property
    def secrets_dir(self) -> Path:
        """Where a node's operator puts the values of ``--secret``."""
        return self.config_path.with_name("secrets")


def read_settings(flags: StoreFlags, environ: Mapping[str, str]) -> Settings:
    """The settings of this process. Raises RequestError for what cannot be read."""
    config_path = _folder(environ, "XDG_CONFIG_HOME", ".config") / "gpuq" / "config.toml"
    file = read_config(config_path)
    host = as_name(socket.gethostname())
    user = _user(environ, host)
    return Settings(
        store=_store(flags, environ, file, config_path),
        user=user,
        organization=_organization(environ, file, config_path, user),
        pool=_pool(environ, file, config_path),
        host=host,
        timings=_timings(environ),
        state_dir=_state_dir(environ),
        config_path=config_path,
        file=file,
    )


def read_config(path: Path) -> ConfigFile:
    """The file at ``path``; where there is none, one that says nothing."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ConfigFile)
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        keys = ", ".join(ConfigFile.__struct_fields__)
        raise RequestError(f"{path}: {error}; its keys are {keys}, each a string") from error


def write_config(path: Path, file: ConfigFile) -> None:
    """Replace the file at ``path``; what says nothing is left out."""
    lines = [
        f"{name} = {toml_string(value)}\n"
        for name in ConfigFile.__struct_fields__
        if (value := getattr(file, name))
    ]
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text("".join(lines), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def toml_string(text: str) -> str:
    """``text`` as a basic string of TOML, which is JSON's but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_store_url(text: str) -> str:
    """A relative path made absolute; whatever else is left for the store to judge."""
    if text.startswith(("./", "../", "~")) or text in (".", ".."):
        return os.path.abspath(os.path.expanduser(text))
    return text


def default_store(environ: Mapping[str, str]) -> str:
    """The folder under the user's data directory."""
    folder = _folder(environ, "XDG_DATA_HOME", ".local/share")
    return (folder / "gpuq" / "ledger").as_uri()


def _store(
    flags: StoreFlags, environ: Mapping[str, str], file: ConfigFile, config_path: Path
) -> StoreChoice:
    if flags.store:
        url, source = flags.store, "--store"
    elif environ.get("GPUQ_STORE"):
        url, source = environ["GPUQ_STORE"], "GPUQ_STORE"
    elif file.store:
        url, source = file.store, str(config_path)
    else:
        url, source = default_store(environ), "default"
    # How to reach a store is said in the file for that store alone.
    details = file if url == file.store else ConfigFile()
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if url.startswith(SCHEME):
        return remote_store(url, flags, environ, source, ca_bundle=details.ca_bundle)
    return StoreChoice(
        url=as_store_url(url),
        endpoint_url=flags.endpoint_url or endpoint or details.endpoint_url or None,
        region=flags.region or details.region or None,
        ca_bundle=flags.ca_bundle or details.ca_bundle or None,
        source=source,
        is_default=source == "default",
    )


def choose_store(settings: Settings, url: str, invocation: Invocation) -> StoreChoice:
    """Another store than that of the settings, reached as flags and environment say."""
    if url.startswith(SCHEME):
        return remote_store(url, invocation.flags, invocation.environ, "init")
    choice = settings.store
    is_same = choice.url == as_store_url(url)
    return StoreChoice(
        url=as_store_url(url),
        endpoint_url=choice.endpoint_url,
        region=choice.region,
        ca_bundle=choice.ca_bundle,
        login=choice.login,
        source=choice.source if is_same else "init",
    )


def remote_store(
    text: str,
    flags: StoreFlags,
    environ: Mapping[str, str],
    source: str,
    *,
    ca_bundle: str = "",
) -> StoreChoice:
    """An S3 remote of rclone's configuration; what flags say counts more."""
    remote = read_remote(text, environ)
    return StoreChoice(
        url=remote.url,
        endpoint_url=flags.endpoint_url or remote.endpoint_url,
        region=flags.region or remote.region,
        ca_bundle=flags.ca_bundle or ca_bundle or None,
        login=remote.login,
        name=text,
        source=source,
    )


def _user(environ: Mapping[str, str], host: str) -> Setting:
    if environ.get("GPUQ_USER"):
        return Setting(environ["GPUQ_USER"], "GPUQ_USER")
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # a container often runs under a uid without a name
        login = f"uid{os.getuid()}"
    return Setting(f"{login}@{host}", "login")


def _organization(
    environ: Mapping[str, str], file: ConfigFile, config_path: Path, user: Setting
) -> Setting:
    if environ.get("GPUQ_ORG"):
        return Setting(check_name("GPUQ_ORG", environ["GPUQ_ORG"]), "GPUQ_ORG")
    if file.organization:
        what = f"organization in {config_path}"
        return Setting(check_name(what, file.organization), str(config_path))
    return Setting(as_name(user.value.partition("@")[0].replace(".", "-")), "user")


def _pool(environ: Mapping[str, str], file: ConfigFile, config_path: Path) -> Setting:
    if environ.get("GPUQ_POOL"):
        return Setting(check_name("GPUQ_POOL", environ["GPUQ_POOL"]), "GPUQ_POOL")
    if file.pool:
        return Setting(check_name(f"pool in {config_path}", file.pool), str(config_path))
    return Setting("default", "default")


def _timings(environ: Mapping[str, str]) -> Timings:
    text = environ.get("GPUQ_TIME_SCALE", "1")
    try:
        divisor = float(text)
    except ValueError:
        divisor = 0
    if not 0 < divisor <= 1_000:
        raise RequestError(f"GPUQ_TIME_SCALE {text!r} is not a number between 0 and 1000")
    return Timings().scaled(divisor)


def _state_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("GPUQ_STATE_DIR"):
        return Path(environ["GPUQ_STATE_DIR"]).absolute()
    return _folder(environ, "XDG_STATE_HOME", ".local/state") / "gpuq"


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    """An XDG base directory; a relative one is to be ignored, as its specification says."""
    path = Path(environ.get(variable, ""))
    if path.is_absolute():
        return path
    try:
        return Path(environ.get("HOME") or Path.home()).absolute() / below_home
    except RuntimeError as error:
        raise RequestError("there is no home directory: set HOME") from error
