"""What every test may use: Hypothesis profiles and an environment of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the machine is shared, and speed is not what a test judges.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

_FOREIGN = ("AWS_", "GPUQ_", "RCLONE_", "XDG_")


@pytest.fixture
def gpuq_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment of a user who has configured nothing, and whose HOME is empty.

    In force in this process, and returned for processes that the test starts. No AWS_*,
    GPUQ_* or XDG_* variable of the developer is left, and boto3 asks no metadata service.
    """
    for name in os.environ:
        if name.startswith(_FOREIGN):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return dict(os.environ)


# A shell that runs the tests in the background ignores SIGINT for them, and their children
# would inherit that: then no test could interrupt anything.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
