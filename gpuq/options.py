"""Options that are declared once and may be said in several places.

Owns what an option is, and the order of authority: flag, variable, directive in the script,
project file, default. One declaration makes a flag with its help, a ``GPUQ_*`` variable, a
directive, a key of the project file and a line of ``--explain``; all of them are read by the
option's one ``read``, so a value means the same wherever it stands.
"""

from __future__ import annotations

import inspect
import keyword
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

import typer

from gpuq.config import Setting
from ledger.errors import RequestError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Kind(Enum):
    """How often an option may be said, and what counts then."""

    VALUE = "one value; the last one counts"
    SWITCH = "on, or off by --no-...; its value is a bool"
    LIST = "a tuple of values; the highest place that says any says them all"
    GATHERED = "a tuple of the values of all places, those of the highest last"


@dataclass(frozen=True, kw_only=True)
class Option(Generic[T_co]):
    """One option of ``gpuq submit``; of a repeatable one ``read`` reads each value."""

    flags: tuple[str, ...]
    """The long one first, which names it everywhere: ``--gpu-mem`` is ``GPUQ_GPU_MEM``."""
    help: str
    kind: Kind = Kind.VALUE
    read: Callable[[str], Any] = str
    """Raises RequestError for what it cannot read; the message need not say where it stood."""
    default: T_co
    """Its value where nobody says it; with ``at_submit`` that of its field."""
    fields: tuple[str, ...] = ()
    """Of ``JobSpec``, which its value fills; where there are several it is a tuple of theirs."""
    at_submit: Callable[[Any, int], Any] | None = None
    """Makes the field of the value and the store's time in ms, where it depends on that."""
    show: Callable[[Any], str] = str
    """For ``--explain``."""

    @property
    def name(self) -> str:
        """As in the project file."""
        return self.flags[0].removeprefix("--")

    @property
    def variable(self) -> str:
        return f"GPUQ_{self.name.upper().replace('-', '_')}"

    @property
    def parameter(self) -> str:
        """As Python may call it."""
        name = self.name.replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name


Options = Sequence[Option[Any]]


@dataclass(frozen=True)
class Said:
    """What one place says: by the option's ``parameter``, a string, a bool or strings."""

    place: str
    """``GPUQ_TIME``, ``train.sh line 2``; empty for flags, which name themselves."""
    values: Mapping[str, Any]


Layer = Sequence[Said]
"""Places of the same authority; of two that say the same option the later one counts."""


@dataclass(frozen=True)
class Choice(Generic[T]):
    """An option's value, and who said so."""

    value: T
    source: str


class Choices:
    """What was chosen for each option of a table."""

    def __init__(self, options: Options, layers: Sequence[Layer]) -> None:
        """``layers`` have the highest first. Raises RequestError for what cannot be read."""
        self._options = options
        self._choices = {option.name: _choose(option, layers) for option in options}

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self._choices[option.name].value
        return value

    def source(self, option: Option[Any]) -> str:
        return self._choices[option.name].source

    def is_said(self, option: Option[Any]) -> bool:
        """Whether anybody said it."""
        return self._choices[option.name].source != "default"

    def fields(self, now_ms: int) -> dict[str, Any]:
        """Of ``JobSpec``, all that the options fill; ``now_ms`` is on the store's clock."""
        filled: dict[str, Any] = {}
        for option in self._options:
            value = self._field(option, now_ms)
            if len(option.fields) == 1:
                filled[option.fields[0]] = value
            else:
                filled |= dict(zip(option.fields, value, strict=True)) if option.fields else {}
        return filled

    def rows(self, now_ms: int) -> Iterator[tuple[str, Setting]]:
        """Name and value, as shown, of each option that says anything; for ``--explain``."""
        for option in self._options:
            value = self._field(option, now_ms)
            shown = option.show(value) if value else ""
            if shown or self.is_said(option):
                yield option.name, Setting(shown, self.source(option))

    def _field(self, option: Option[Any], now_ms: int) -> Any:
        choice = self._choices[option.name]
        if option.at_submit is None or not self.is_said(option):
            return choice.value
        return _placed(choice.source, option, lambda: option.at_submit(choice.value, now_ms))  # type: ignore[misc]


def _choose(option: Option[Any], layers: Sequence[Layer]) -> Choice[Any]:
    saying = [
        [said for said in layer if said.values.get(option.parameter) is not None]
        for layer in layers
    ]
    heard = [layer for layer in saying if layer]
    if not heard:
        return Choice(option.default, "default")
    match option.kind:
        case Kind.VALUE | Kind.SWITCH:
            return _read_one(option, heard[0][-1])
        case Kind.LIST:
            return _read_all(option, heard[0])
        case Kind.GATHERED:
            return _read_all(option, [said for layer in reversed(heard) for said in layer])


def _read_one(option: Option[Any], said: Said) -> Choice[Any]:
    raw, source = said.values[option.parameter], said.place or option.flags[0]
    if option.kind is Kind.SWITCH:
        return Choice(raw, source)
    return Choice(_placed(said.place, option, lambda: option.read(raw)), source)


def _read_all(option: Option[Any], saying: Layer) -> Choice[Any]:
    values = [
        _placed(said.place, option, lambda word=word: option.read(word))  # type: ignore[misc]
        for said in saying
        for word in said.values[option.parameter]
    ]
    sources = dict.fromkeys(said.place or option.flags[0] for said in saying)
    return Choice(tuple(values), ", ".join(sources))


def _placed(place: str, option: Option[Any], read: Callable[[], T]) -> T:
    """What ``read`` gives; its error says where that stood, unless it was a flag."""
    try:
        return read()
    except RequestError as error:
        if place in ("", option.flags[0]):
            raise
        raise RequestError(f"{place}: {error}") from error


# --- as flags


def takes(options: Options) -> Callable[[_Function], _Function]:
    """Give a command a flag for each option; it gets what was said in its ``**said``.

    typer reads a command's flags from its signature.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        first = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        last = [p for p in own if p.kind is p.KEYWORD_ONLY]
        flags = [_parameter(option) for option in options]
        signature = signature.replace(parameters=[*first, *flags, *last])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


def _parameter(option: Option[Any]) -> inspect.Parameter:
    flags, kind = option.flags, option.kind
    annotation: Any = str | None
    if kind is Kind.SWITCH:
        flags, annotation = (f"{flags[0]}/--no-{option.name}", *flags[1:]), bool | None
    elif kind is not Kind.VALUE:
        annotation = list[str] | None
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, typer.Option(*flags, help=option.help)],
    )


# --- as variables


def said_by_variables(options: Options, environ: Mapping[str, str]) -> Layer:
    """What ``GPUQ_*`` variables say; empty ones say nothing.

    A repeatable option's variable holds its values as a shell would split them. Raises
    RequestError for one that cannot be split, or is no switch.
    """
    return [
        Said(option.variable, {option.parameter: _of_variable(option, text)})
        for option in options
        if (text := environ.get(option.variable, ""))
    ]


def _of_variable(option: Option[Any], text: str) -> Any:
    match option.kind:
        case Kind.VALUE:
            return text
        case Kind.SWITCH:
            return read_switch(option.variable, text)
        case Kind.LIST | Kind.GATHERED:
            try:
                return shlex.split(text)
            except ValueError as error:
                raise RequestError(f"{option.variable}: {error}: mend its quotes") from error


def read_switch(place: str, text: str) -> bool:
    """``1``, ``true``, ``yes``, ``on`` and their opposites. Raises RequestError."""
    if text.lower() not in _YES + _NO:
        raise RequestError(f"{place}: {text!r} is neither 1 nor 0")
    return text.lower() in _YES
