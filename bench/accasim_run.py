"""``python accasim_run.py TRACE.swf SLOTS``: AccaSim's strict FIFO on one node, as JSON.

Runs under the Python of a virtual environment that has AccaSim 1.1.3, and imports nothing of
gpuq. Owns what AccaSim needs on Python 3.10 and newer (``collections.Mapping`` moved), and its
fastest settings: no output files, no statistics, no logging.
"""

from __future__ import annotations

import collections
import collections.abc
import json
import sys
import tempfile
import time
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import FirstInFirstOut  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402


def main() -> None:
    """Print the jobs, the total wait and the processor time of reading and simulating."""
    trace, slots = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="gpuq-bench-") as folder:
        system = {
            "groups": {"pool": {"core": int(slots)}},
            "resources": {"pool": 1},
            "equivalence": {"processor": {"core": 1}},
            "start_time": 0,
        }
        config = Path(folder) / "system.json"
        config.write_text(json.dumps(system))
        simulator = Simulator(
            trace,
            str(config),
            FirstInFirstOut(FirstFit()),
            scheduling_output=False,
            statistics_output=False,
            show_statistics=False,
            LOG_LEVEL="ERROR",
            RESULTS_FOLDER_PATH=folder,
        )
        begun = time.process_time()
        simulator.start_simulation()
        cpu_s = time.process_time() - begun
    waits = simulator.mapper.wtimes
    print(json.dumps({"jobs": len(waits), "total_wait_s": sum(waits), "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
