"""``python -m simulation --seeds 0-999``: the protocol under faults, seed by seed."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

import structlog

from simulation.faults import Verdict, World
from simulation.variants import VARIANTS, broken

KEPT_SEEDS = 3


def run_seed(seed: int, variant: str = "") -> Verdict:
    """One run; picklable, so that seeds can be spread over processes."""
    with broken(variant):
        return World(seed).run()


def main() -> int:
    """Run the seeds; 1 if any found a breach."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="one seed or a range: 17, 0-999")
    parser.add_argument("--jobs", type=int, default=1, help="processes to spread them over")
    parser.add_argument(
        "--variant", default="", choices=["", *VARIANTS], help="a deliberately broken protocol"
    )
    parser.add_argument(
        "--search", action="store_true", help="for each variant, the seeds that catch it, as JSON"
    )
    parser.add_argument("--first", action="store_true", help="stop at the first breach")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if arguments.search:
        return _search(_range(arguments.seeds), arguments.jobs)
    seeds = _range(arguments.seeds)
    faults: Counter[str] = Counter()
    breaches = 0
    for verdict in _run(seeds, arguments.jobs, arguments.variant):
        faults.update(verdict.faults)
        if verdict.breach:
            breaches += 1
            print(f"seed {verdict.seed}: {verdict.breach}")
            variant = f" --variant {arguments.variant}" if arguments.variant else ""
            print(f"  repeat: python -m simulation --seeds {verdict.seed}{variant}", flush=True)
            if arguments.first:
                break
        elif len(seeds) == 1:
            print(verdict)
    print(f"{len(seeds)} seeds, {breaches} breaches; faults played: {dict(sorted(faults.items()))}")
    return 1 if breaches else 0


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _search(seeds: range, jobs: int) -> int:
    """Print up to three catching seeds of each variant; 1 if one is never caught."""
    kept: dict[str, list[int]] = {}
    for variant in VARIANTS:
        caught = (v.seed for v in _run(seeds, jobs, variant) if v.breach)
        kept[variant] = list(islice(caught, KEPT_SEEDS))
        print(variant, kept[variant], file=sys.stderr, flush=True)
    print(json.dumps(kept, indent=2))
    return 0 if all(kept.values()) else 1


def _run(seeds: range, jobs: int, variant: str) -> Iterator[Verdict]:
    run = partial(run_seed, variant=variant)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
