"""The protocol under faults: seeds of the true one, and of broken ones that must be caught."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from simulation.__main__ import run_seed
from simulation.variants import VARIANTS

KEPT: dict[str, list[int]] = json.loads((Path(__file__).parent / "kept_seeds.json").read_text())
"""Seeds that caught a broken variant; ``python -m simulation --variant NAME`` finds more."""

SEEDS = range(40)
"""Of the true protocol; ``make soak`` and CI run many more."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A failing seed is told by its breach; what the roles log fills screens."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def test_every_variant_has_kept_seeds() -> None:
    assert set(KEPT) == set(VARIANTS)


@pytest.mark.parametrize("variant", sorted(KEPT))
def test_a_broken_protocol_is_caught(variant: str) -> None:
    breaches = (run_seed(seed, variant).breach for seed in KEPT[variant])
    assert any(breaches), f"no kept seed catches {variant} any more: search for new ones"


@pytest.mark.parametrize("seed", sorted({seed for seeds in KEPT.values() for seed in seeds}))
def test_the_true_protocol_holds_where_a_broken_one_failed(seed: int) -> None:
    assert run_seed(seed).breach == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_true_protocol_holds(seed: int) -> None:
    assert run_seed(seed).breach == ""


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert run_seed(7) == run_seed(7)


def test_faults_are_really_played() -> None:
    played: set[str] = set()
    for seed in range(12):
        played.update(run_seed(seed).faults)
    assert played >= {
        "lost reply",
        "write lands late",
        "409 with nothing stored",
        "412 on one's own write",
        "server error",
        "list skips a key",
        "list repeats a key",
        "list delays a key",
        "no route",
        "kill",
        "kill after a write",
        "freeze",
        "suspend",
        "reboot",
    }
