"""Times, sizes, GPUs and variables. The forms and meanings of --time are sbatch's manual's."""

from __future__ import annotations

import pytest

from gpuq.parse import (
    Gpus,
    parse_duration,
    parse_gpus,
    parse_grace,
    parse_secret,
    parse_size,
    parse_variable,
)
from ledger.errors import RequestError

S, M, H, D = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        # "minutes", "minutes:seconds", "hours:minutes:seconds"
        ("90", 90 * M),
        ("1:30", 1 * M + 30 * S),
        ("120:00", 120 * M),
        ("1:30:00", 1 * H + 30 * M),
        ("100:00:01", 100 * H + 1 * S),
        # "days-hours", "days-hours:minutes", "days-hours:minutes:seconds"
        ("2-12", 2 * D + 12 * H),
        ("1-0:30", 1 * D + 30 * M),
        ("0-1:02:03", 1 * H + 2 * M + 3 * S),
        # gpuq's own
        ("90m", 90 * M),
        ("1h30m", 90 * M),
        ("2d", 2 * D),
        ("45s", 45 * S),
        ("1D2H3M4S", 1 * D + 2 * H + 3 * M + 4 * S),
        (" 5m ", 5 * M),
    ],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.5h", "-5", "1:2:3:4", "1:75", "1:75:00", "2-24", "1-", "30m1h", "5 m", "h", "0",
     "0:00", "20000d", "1h30", "unlimited", "٣"],
)  # fmt: skip
def test_a_time_that_cannot_be_read_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(RequestError, match="not"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("40G", 40_000_000_000),
        ("40GB", 40_000_000_000),
        ("40GiB", 42_949_672_960),
        ("512m", 512_000_000),
        ("1TiB", 1_099_511_627_776),
        ("2k", 2_000),
    ],
)
def test_a_size_is_decimal_unless_it_says_binary(text: str, expected_bytes: int) -> None:
    assert parse_size(text) == expected_bytes


def test_what_a_card_is_sold_with_is_not_more_than_it_has() -> None:
    """nvidia-smi shows 24564 MiB for a 24 GB card and 81559 MiB for an 80 GB one."""
    assert parse_size("24G") <= 24_564 * 1024**2
    assert parse_size("80G") <= 81_559 * 1024**2


@pytest.mark.parametrize("text", ["", "40", "G", "0G", "4.5G", "-1G", "40P", "40 G"])
def test_a_size_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(RequestError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", Gpus(1, "")), ("8", Gpus(8, "")), ("h100:2", Gpus(2, "h100")),
     ("RTX 4090:1", Gpus(1, "rtx 4090"))],
)  # fmt: skip
def test_gpus_are_a_number_or_a_type_and_a_number(text: str, expected: Gpus) -> None:
    assert parse_gpus(text) == expected


@pytest.mark.parametrize("text", ["", "0", "h100", "h100:", ":2", "-1", "1.5", "2:h100", "9999"])
def test_gpus_that_cannot_be_read_are_an_error(text: str) -> None:
    with pytest.raises(RequestError, match=r"GPUs|slots"):
        parse_gpus(text)


def test_variables_keep_everything_behind_the_first_equals_sign() -> None:
    assert parse_variable("A=b=c") == ("A", "b=c")
    assert parse_variable("_X=") == ("_X", "")
    assert parse_variable("A") == ("A", None)


@pytest.mark.parametrize("pair", ["=b", "1A=b", "A-B=c", "GPUQ_JOB_ID=x", ""])
def test_what_is_no_variable_of_ones_own_is_refused(pair: str) -> None:
    with pytest.raises(RequestError, match="--env"):
        parse_variable(pair)


@pytest.mark.parametrize(
    ("text", "grace_ms"), [("0", 1), ("0s", 1), ("1s", 1_000), ("2m", 120_000), ("4", 240_000)]
)
def test_a_grace_is_a_time_and_may_be_none_at_all(text: str, grace_ms: int) -> None:
    assert parse_grace(text) == grace_ms


@pytest.mark.parametrize("name", ["HF_TOKEN", "x"])
def test_a_secret_is_a_name_without_a_value(name: str) -> None:
    assert parse_secret(name) == name
    with pytest.raises(RequestError, match=rf"^--secret {name} takes no value"):
        parse_secret(f"{name}=hunter2")


@pytest.mark.parametrize("name", ["", "../x", "A-B", "GPUQ_TOKEN"])
def test_a_secret_is_a_variable_of_ones_own(name: str) -> None:
    with pytest.raises(RequestError, match="--secret"):
        parse_secret(name)
