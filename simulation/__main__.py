"""``python -m simulation --seeds 0-999``: the protocol under faults, seed by seed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from simulation.faults import Verdict, World


def run_seed(seed: int) -> Verdict:
    """One run; picklable, so that seeds can be spread over processes."""
    return World(seed).run()


def main() -> int:
    """Run the seeds; 1 if any found a breach."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="one seed or a range: 17, 0-999")
    parser.add_argument("--jobs", type=int, default=1, help="processes to spread them over")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    faults: Counter[str] = Counter()
    breaches = 0
    for verdict in _run(seeds, arguments.jobs):
        faults.update(verdict.faults)
        if verdict.breach:
            breaches += 1
            print(f"seed {verdict.seed}: {verdict.breach}")
            print(f"  repeat: python -m simulation --seeds {verdict.seed}")
        elif len(seeds) == 1:
            print(verdict)
    print(f"{len(seeds)} seeds, {breaches} breaches; faults played: {dict(sorted(faults.items()))}")
    return 1 if breaches else 0


def _run(seeds: range, jobs: int) -> Iterator[Verdict]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
