"""Fixtures of the tests of the roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.attempts import Attempts


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    """Starts attempts; whatever still runs at the end is killed."""
    made = Attempts(tmp_path / "jobs")
    yield made
    made.clean_up()
