"""What ``gpuq submit`` says of what it understood: explanations, hints and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from gpuq.after import texts_of
from gpuq.config import Setting, Settings
from gpuq.joboptions import CHDIR, CLASS, ESTIMATE, GRACE, JOB_OPTIONS, NAME, ORG, POOL, TIME
from gpuq.options import Choices
from gpuq.render import long_duration, plain_table, times
from gpuq.snapshot import Packed
from gpuq.view import View
from ledger.arrays import index_at, size_of
from ledger.calibration import ONE
from ledger.estimates import calibration_of
from ledger.events import JobSpec
from ledger.projection import Projection


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it will be submitted, and who said what."""

    choices: Choices
    spec: JobSpec
    blobs: tuple[bytes, ...]
    """That the spec names."""
    packed: Packed | None
    """The snapshot that it names."""
    organization: Setting
    pool: Setting
    workload_class: Setting


def explain_wish(view: View, wish: Wish, settings: Settings) -> None:
    """Each value and who said so; talk, so that stdout stays what a program reads."""
    rows = dict(wish.choices.rows(view.now_ms)) | _derived(view, wish, settings)
    table = [("user", settings.user)]
    table += [(name, rows[name]) for option in JOB_OPTIONS if (name := option.name) in rows]
    lines = [(name, setting.value, setting.source) for name, setting in table]
    print(plain_table(("WHAT", "VALUE", "FROM"), lines), file=sys.stderr)


def _derived(view: View, wish: Wish, settings: Settings) -> dict[str, Setting]:
    """Values that stand even where nobody says the option, or follow from others."""
    choices, spec = wish.choices, wish.spec
    named_after = "file" if spec.script else "program"
    return {
        ORG.name: wish.organization,
        CLASS.name: wish.workload_class,
        POOL.name: wish.pool,
        NAME.name: Setting(spec.name, choices.source(NAME) if choices[NAME] else named_after),
        CHDIR.name: Setting(spec.cwd, choices.source(CHDIR)),
        ESTIMATE.name: _estimate(view, wish),
        GRACE.name: Setting(
            long_duration(spec.grace_ms or settings.timings.grace_ms), choices.source(GRACE)
        ),
    }


def _estimate(view: View, wish: Wish) -> Setting:
    """What a dispatch would charge, and who says so."""
    projection = Projection(view.state)
    if view.state.policy.pool(wish.spec.pool).api is not None:
        tokens, said = projection.estimated_cost(wish.spec), "--input-tokens, --max-output-tokens"
        known = calibration_of(view.state, wish.spec)
        so_far = f"; {known.factor_ppm / ONE:.3f} times, by what calls took" if known.calls else ""
        return Setting(f"{tokens} tokens", f"{said}{so_far}")
    run_ms, source = projection.expected(wish.spec)
    for option in (ESTIMATE, TIME):
        if source == option.flags[0]:
            source = wish.choices.source(option)
    return Setting(long_duration(run_ms), source)


def hint(view: View, spec: JobSpec) -> Iterator[str]:
    """What was read how, and a pool that nobody serves now."""
    if spec.time_limit_ms:
        yield f"time limit {long_duration(spec.time_limit_ms)}"
    if spec.array is not None:
        yield f"an array of {size_of(spec.array)}: {spec.id}_{index_at(spec.array, 0)} is its first"
    strange = [node for node in spec.exclude if node not in view.state.nodes]
    if strange:
        yield (
            f"no node {', '.join(strange)} has reported yet: is that what --exclude should name?"
        )
    pools = {worker.pool for worker in view.state.workers.values() if worker.ready} - {""}
    if pools and spec.pool not in pools:
        yield f"no worker serves pool {spec.pool!r} now; there is {', '.join(sorted(pools))}"


def job_json(spec: JobSpec, outcome: str) -> dict[str, Any]:
    """One element of ``submit --json``."""
    return {
        "id": spec.id,
        "name": spec.name,
        "outcome": outcome,
        "organization": spec.organization,
        "class": spec.workload_class,
        "pool": spec.pool,
        "slots": spec.slots,
        "gpu_type": spec.gpu_type,
        "gpu_memory_bytes": spec.gpu_memory_bytes,
        "time_limit_ms": spec.time_limit_ms or None,
        "pinned_to": spec.worker,
        "exclude": list(spec.exclude),
        "priority": spec.priority,
        "key": spec.key,
        **times(deadline_at=spec.deadline_at or None, begin_at=spec.begin_at or None),
        "retries": spec.retries,
        "members": size_of(spec.array) if spec.array is not None else None,
        "after": texts_of(spec.after),
        "after_artifacts": list(spec.after_artifacts),
    }
