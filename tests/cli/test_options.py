"""One declaration of an option, heard in every place: who is believed, and what errors name."""

from __future__ import annotations

from typing import Any

import pytest

from gpuq.options import Choices, Kind, Option, Said, said_by_variables
from gpuq.parse import parse_count
from ledger.errors import RequestError

COUNT = Option(flags=("--max-count", "-c"), help="", read=parse_count, default=7, fields=("n",))
HOLD = Option(flags=("--hold",), help="", kind=Kind.SWITCH, default=False, fields=("held",))
LIST: Option[tuple[str, ...]] = Option(flags=("--class",), help="", kind=Kind.LIST, default=())
GATHERED: Option[tuple[str, ...]] = Option(
    flags=("--env",), help="", kind=Kind.GATHERED, default=()
)
TABLE: tuple[Option[Any], ...] = (COUNT, HOLD, LIST, GATHERED)


def said(place: str, **values: Any) -> Said:
    return Said(place, values)


def test_the_highest_place_that_says_anything_is_believed() -> None:
    flags, file = said("", max_count=None), said("gpuq.toml", max_count="3")
    lines = [said("a.sh line 2", max_count="1"), said("a.sh line 3", max_count="2")]
    low = Choices(TABLE, [[flags], [], [file]])
    assert (low[COUNT], low.source(COUNT)) == (3, "gpuq.toml")
    middle = Choices(TABLE, [[flags], lines, [file]])
    assert (middle[COUNT], middle.source(COUNT)) == (2, "a.sh line 3")
    high = Choices(TABLE, [[said("", max_count="0")], lines, [file]])
    assert (high[COUNT], high.source(COUNT)) == (0, "--max-count")
    nobody = Choices(TABLE, [[flags]])
    assert (nobody[COUNT], nobody.source(COUNT)) == (7, "default")


def test_a_switch_is_put_off_by_a_higher_place() -> None:
    choices = Choices(TABLE, [[said("", hold=False)], [said("gpuq.toml", hold=True)]])
    assert choices.fields(0) == {"n": 7, "held": False}


def test_a_list_is_that_of_one_place_and_what_is_gathered_is_that_of_all() -> None:
    high = [said("", class_=["a"], env=["x"])]
    low = [said("one", class_=["b"], env=["y"]), said("two", class_=["c"], env=["z"])]
    choices = Choices(TABLE, [high, low])
    assert (choices[LIST], choices.source(LIST)) == (("a",), "--class")
    assert choices[GATHERED] == ("y", "z", "x")
    assert choices.source(GATHERED) == "one, two, --env"
    assert Choices(TABLE, [low])[LIST] == ("b", "c")


def test_an_error_names_the_place_but_for_a_flag() -> None:
    with pytest.raises(RequestError, match=r"^a.sh line 2: 'x' is not a whole number"):
        Choices(TABLE, [[said("a.sh line 2", max_count="x")]])
    with pytest.raises(RequestError, match=r"^'x' is not a whole number"):
        Choices(TABLE, [[said("", max_count="x")]])


def test_variables_are_read_by_the_kind_of_their_option() -> None:
    environ = {
        "GPUQ_MAX_COUNT": "4", "GPUQ_HOLD": "no", "GPUQ_ENV": "A=1 'B=x y'", "GPUQ_CLASS": "",
        "GPUQ_OTHER": "5", "HOLD": "1",
    }  # fmt: skip
    choices = Choices(TABLE, [said_by_variables(TABLE, environ)])
    assert (choices[COUNT], choices[HOLD], choices[LIST]) == (4, False, ())
    assert choices[GATHERED] == ("A=1", "B=x y")
    assert choices.source(HOLD) == "GPUQ_HOLD"


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("GPUQ_HOLD", "maybe", "GPUQ_HOLD: 'maybe' is neither 1 nor 0"),
        ("GPUQ_ENV", "'A=1", "GPUQ_ENV: No closing quotation: mend its quotes"),
    ],
)
def test_a_variable_that_cannot_be_read_names_itself(variable: str, text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        said_by_variables(TABLE, {variable: text})


def test_a_field_may_depend_on_the_time_of_the_submit() -> None:
    def later(text: str, now_ms: int) -> int:
        if text == "soon":
            raise RequestError(f"{text!r} is no time")
        return now_ms + int(text)

    option = Option(flags=("--at",), help="", default=0, fields=("at",), at_submit=later)
    assert Choices([option], []).fields(now_ms=100) == {"at": 0}
    assert Choices([option], [[said("f", at="5")]]).fields(now_ms=100) == {"at": 105}
    with pytest.raises(RequestError, match=r"^f: 'soon' is no time"):
        Choices([option], [[said("f", at="soon")]]).fields(now_ms=100)
