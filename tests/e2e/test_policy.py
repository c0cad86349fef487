"""What the policy and a job's own wishes make of real processes."""

from __future__ import annotations

from pathlib import Path

from ledger.events import JobState, Report
from ledger.policy import ApiLimits, Limits, Organization, Policy, Pool, WorkloadClass
from scheduling.policy_text import format_policy
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


def apply(cluster: Cluster, policy: Policy) -> None:
    path = cluster.work_dir / "policy.toml"
    path.write_text(format_policy(policy))
    cluster.gpuq("policy", "apply", str(path))


def test_a_deadline_ends_what_runs_and_what_waits(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("runs.sh", cluster.gate("never"))
    cluster.script("waits.sh")
    runs, waits = cluster.submit("--deadline", "15s", "runs.sh", "waits.sh")
    assert cluster.wait_for_begin("runs.sh") == 1
    ended = [cluster.wait_for_state(job, JobState.EXPIRED) for job in (runs, waits)]
    assert [len(job.attempts) for job in ended] == [1, 0]
    assert ended[0].attempts[0].outcome == "deadline"
    assert ended[1].reason == "its deadline has passed"
    assert cluster.runs_of("waits.sh") == []
    cluster.verified()


def test_a_failure_is_tried_again_and_a_report_is_booked(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    """First rc 75, then well; 40 tokens in and 10 out cost 40 + 2 x 10 = 60, not 40 + 2 x 60."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    api = ApiLimits(requests_per_minute=60, tokens_per_minute=1_000, in_flight=2)
    apply(cluster, Policy(pools={"default": Pool(discipline="sfq", api=api)}))
    cluster.serve("n1", 1)
    said = '{"requests": 1, "input_tokens": 40, "output_tokens": 10, "throttled": 1}'
    cluster.script(
        "call.sh",
        '[ "$GPUQ_ATTEMPT" -gt 1 ] || exit 75',
        f"echo '{said}' >>\"$GPUQ_REPORT\"",
    )
    (job,) = cluster.submit(
        *("--retries", "2", "--retry-on", "rc=75", "--input-tokens", "40"),
        *("--max-output-tokens", "60", "call.sh"),
    )
    done = cluster.wait_for_state(job, JobState.COMPLETED, JobState.FAILED)
    assert [attempt.rc for attempt in done.attempts] == [75, 0]
    assert done.attempts[1].report == Report(
        requests=1, input_tokens=40, output_tokens=10, throttled=1
    )
    assert done.attempts[1].cost_ms == 160
    cluster.verified()


def test_a_resumable_job_gives_way_and_goes_on(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    classes = {"batch": WorkloadClass(quantum_ms=3_000), "interactive": WorkloadClass()}
    limits = {"busy": Organization(limits=Limits(slots=1))}
    pools = {"default": Pool(discipline="sfq")}
    apply(cluster, Policy(classes=classes, organizations=limits, pools=pools))
    cluster.serve("n1", 1)
    cluster.script(
        "long.sh",
        "trap 'exit 75' TERM",
        '[ "$GPUQ_ATTEMPT" -gt 1 ] || while :; do sleep 0.1; done',
    )
    cluster.script("short.sh")
    (long_job,) = cluster.submit("--org", "busy", "--resumable", "long.sh")
    cluster.wait_for_begin("long.sh")
    (short_job,) = cluster.submit("--org", "other", "--class", "interactive", "short.sh")
    cluster.wait_for_end(short_job, long_job)
    assert cluster.job(short_job).state is JobState.COMPLETED
    done = cluster.job(long_job)
    assert (done.state, [attempt.rc for attempt in done.attempts]) == (
        JobState.COMPLETED,
        [75, 0],
    )
    cluster.verified()
