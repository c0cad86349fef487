"""``python tools/replay.py verify --store ...``: ``gpuq replay``, run from a checkout."""

from __future__ import annotations

import sys

from gpuq.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["replay", *sys.argv[1:]]))
