"""What a job is expected to take before it runs: time, cost, and what it draws on limits a day.

Owns these estimates, as functions of the state and of what was asked for. They change
nothing; what was learnt from jobs that ended stands in the state (``Transitions.learn``).
"""

from __future__ import annotations

import re

from ledger.calibration import Calibration, calibration_key
from ledger.daily import Use, gpu_use_ms, money_micros
from ledger.events import JobSpec
from ledger.names import FlowId
from ledger.state import PLAIN_RATE, Rate, State

DEFAULT_COST_MS = 600_000
"""Estimated run time of a job that says nothing and whose like never ran."""


def expected(state: State, spec: JobSpec) -> tuple[int, str]:
    """Run time to charge for (ms), and who says so."""
    if spec.estimate_ms:
        return spec.estimate_ms, "--estimate"
    if spec.time_limit_ms:
        return spec.time_limit_ms, "--time"
    recent_ms = state.recent_cost_ms.get(stem(spec))
    return (recent_ms, "recent jobs of that name") if recent_ms else (DEFAULT_COST_MS, "default")


def estimated_cost(state: State, spec: JobSpec) -> int:
    """What a dispatch is charged: slot-milliseconds, or tokens in an API pool.

    Output counts ``output_factor`` times, as far as it may go; of all that, what calls of that
    pool and class have really taken of late.
    """
    api = state.policy.pool(spec.pool).api
    if api is None:
        return cost_of(spec.slots * expected(state, spec)[0], cost_rate(state, spec))
    tokens = tokens_cost(spec, max(1, api.output_factor))
    return max(1, spec.requests, calibration_of(state, spec).applied(tokens))


def tokens_cost(spec: JobSpec, output_factor: int) -> int:
    """What all the tokens cost that it may take."""
    return spec.input_tokens + output_factor * spec.max_output_tokens


def calibration_of(state: State, spec: JobSpec) -> Calibration:
    """What is known of calls of its pool and class."""
    key = calibration_key(spec.pool, spec.workload_class)
    return state.calibrations.get(key, Calibration())


def cost_rate(state: State, spec: JobSpec) -> Rate:
    """What a slot-millisecond of the job costs, numerator and denominator.

    ``asked / threshold`` where it asks for more GPU memory than its pool's threshold, else 1:
    so the penalty is the part of the threshold by which it asks for more.
    """
    threshold = state.policy.pool(spec.pool).memory_threshold_bytes
    asked = spec.gpu_memory_bytes
    return (asked, threshold) if 0 < threshold < asked else PLAIN_RATE


def cost_of(slot_ms: int, rate: Rate) -> int:
    """``slots * milliseconds + memory penalty``, the penalty rounded up."""
    asked, threshold = rate
    return slot_ms - (-slot_ms * (asked - threshold) // threshold)


def may_use(state: State, spec: JobSpec, gpus: int) -> Use:
    """What it may draw on the limits a day on so many GPUs: by its time limit, else as expected."""
    run_ms = spec.time_limit_ms or expected(state, spec)[0]
    price = state.policy.pool(spec.pool).price
    money = money_micros(price, max(1, spec.requests), spec.input_tokens, spec.max_output_tokens)
    return Use(gpu_use_ms(gpus, run_ms), money)


def stem(spec: JobSpec) -> str:
    """Flow and job name without its digits and suffix: ``run-17.sh`` is like ``run-4.sh``."""
    return f"{spec.flow}/{re.sub(r'[0-9]+', '', spec.name.rsplit('.', 1)[0])}"


def flow_of_stem(text: str) -> FlowId:
    return FlowId("/".join(text.split("/", 3)[:3]))
