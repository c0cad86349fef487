"""``gpuq.toml`` in the current directory: what all jobs of a project are asked for with.

Owns the form of its values; what they mean is up to the options, whose names are its keys.
"""

from __future__ import annotations

import tomllib
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpuq.options import Kind, Layer, Option, Options, Said
from ledger.errors import RequestError

PROJECT_FILE = "gpuq.toml"


def said_by_project(options: Options, path: Path) -> Layer:
    """What the file says; nothing where there is none.

    Raises RequestError for a file that cannot be read, and for a key that is no option or has
    a value of another kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: {error}") from error
    by_name = {option.name: option for option in options}
    for key in content:
        if key not in by_name:
            near = get_close_matches(key, by_name, n=1)
            mend = f"did you mean {near[0]!r}?" if near else "see 'gpuq submit --help'"
            raise RequestError(f"{path}: there is no option {key!r}: {mend}")
    values = {
        by_name[key].parameter: _value(path, by_name[key], value) for key, value in content.items()
    }
    return [Said(str(path), values)]


def _value(path: Path, option: Option[Any], value: Any) -> Any:
    if option.kind is Kind.SWITCH:
        if not isinstance(value, bool):
            raise RequestError(f"{path}: {option.name} is true or false")
        return value
    if option.kind is Kind.VALUE:
        return _text(path, option, value)
    if isinstance(value, dict):
        return [f"{name}={_text(path, option, inner)}" for name, inner in value.items()]
    return [_text(path, option, inner) for inner in (value if isinstance(value, list) else [value])]


def _text(path: Path, option: Option[Any], value: Any) -> str:
    """A string, a number or a time, as it would be typed."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        several = "" if option.kind is Kind.VALUE else ", or several in [...]"
        raise RequestError(f"{path}: {option.name} is a string or a number{several}")
    return str(value)
