"""Trace readers, and strict FIFO on real traces against figures that other programs found."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from gpuq.__main__ import run
from ledger.errors import RequestError
from ledger.policy import Policy
from simulation.engine import simulate
from simulation.metrics import Report, report
from simulation.traces import read_trace
from simulation.workload import Workload, on_counting_pool, selected, under

TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces"
PHILLY = TRACES / "philly" / "philly_4vc_jobs.csv.gz"
ITP = TRACES / "microsoft_itp" / "itp_10clusters_jobs.csv.gz"


def expected(trace: Path) -> list[dict[str, str]]:
    """The rows of the published outcome; README.md of the traces says how it was found."""
    with (trace.parent / "expected_strict_fifo.csv").open() as file:
        return list(csv.DictReader(file))


def fifo(workload: Workload, slots: int) -> Report:
    made = on_counting_pool(workload, slots)
    return report("fifo", simulate(made, under(made, "fifo")))


def column(made: Report, name: str) -> str:
    return str(getattr(made, name))


@pytest.fixture(scope="module")
def philly() -> Workload:
    return read_trace(PHILLY)


@pytest.mark.parametrize("row", expected(PHILLY), ids=lambda row: "-".join(row.values()))
def test_strict_fifo_on_philly_is_exact_to_the_second(
    philly: Workload, row: dict[str, str]
) -> None:
    cluster = row.pop("jobs_of_vc")
    made = fifo(
        selected(philly, {} if cluster == "all" else {"vc": cluster}), int(row["pool_gpus"])
    )
    assert {name: column(made, name) for name in row} == row


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.soak] if row["pool_gpus"] == "1280" else [])
        for row in expected(ITP)
    ],
    ids=lambda row: row["pool_gpus"],
)
def test_strict_fifo_on_microsoft_itp_is_exact_to_the_second(row: dict[str, str]) -> None:
    made = fifo(read_trace(ITP), int(row["pool_gpus"]))
    assert {name: column(made, name) for name in row} == row


def test_the_copies_are_whole(philly: Workload) -> None:
    """Numbers of rows and GPU-hours as the publishers give them (README.md of the traces)."""
    assert (len(philly.jobs), len(read_trace(ITP).jobs)) == (10_879, 69_351)
    hours = {
        cluster: sum(j.slots * j.duration_ms for j in philly.jobs if j.columns["vc"] == cluster)
        / 3_600_000
        for cluster in ("7f04ca", "ee9e8c", "2869ce", "0e4a51")
    }
    assert {name: round(value) for name, value in hours.items()} == {
        "7f04ca": 383_327,
        "ee9e8c": 824_082,
        "2869ce": 116_690,
        "0e4a51": 204_902,
    }
    assert len(read_trace(TRACES / "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz").jobs) == (
        8_819
    )


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_cluster_trace(tmp_path: Path) -> None:
    path = written(
        tmp_path, "t.csv", "job_id,cluster,num_gpu,submit_s,duration_s\nc07-0,c07,2,1999,13423\n"
    )
    (job,) = read_trace(path).jobs
    assert (job.name, job.organization, job.slots) == ("c07-0", "c07", 2)
    assert (job.arrival_ms, job.duration_ms, job.estimate_ms) == (1_999_000, 13_423_000, 13_423_000)


def test_azure_requests_count_from_the_first_and_take_the_assumed_time(tmp_path: Path) -> None:
    """4808 tokens at 0.1 ms and 10 at 30 ms are 780.8 ms, rounded up; lines end in CR LF."""
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0319600,3180,8"
    )
    first, second = read_trace(written(tmp_path, "a.csv", text)).jobs
    assert (first.arrival_ms, first.duration_ms) == (0, 781)
    assert (second.arrival_ms, second.duration_ms) == (52, 558)
    assert first.workload_class == "interactive"


def test_mooncake(tmp_path: Path) -> None:
    text = "timestamp_ms,input_tokens,output_tokens,prefix_blocks_seen,blocks\n3000,6758,500,0,14\n"
    (job,) = read_trace(written(tmp_path, "m.csv", text)).jobs
    assert (job.arrival_ms, job.duration_ms) == (3_000, 15_676)  # 675.8 + 15,000 ms


def test_alibaba_pods_that_need_no_gpu_or_never_ran_are_left_out(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time\n"
        "p0,6000,12288,1,460,,LS,Running,427061,12902960,427071\n"
        "p1,6000,12288,0,0,,BE,Running,5,10,6\n"
        "p2,6000,12288,1,1000,,BE,Pending,5,10,\n"
    )
    workload = read_trace(written(tmp_path, "p.csv", text))
    (job,) = workload.jobs
    assert workload.left_out == 2
    assert (job.organization, job.workload_class, job.slots) == ("ls", "interactive", 1)
    assert (job.arrival_ms, job.recorded_start_ms) == (427_061_000, 427_071_000)
    assert job.duration_ms == 12_475_889_000


SWF = """; Version: 2.2
  184   561553      0     61   16     -1    -1   16  43200 819200  1   6   1  -1 -1  1 -1 -1
 5414  3801279 129908  26614   36  26614 25600   36  29400    -1  1   1  -1  -1 -1  1 -1 -1
 5415  3801282      5     -1   36     -1    -1   36  29400    -1  5   1   1  -1 -1  1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, "seth.swf", SWF))
    first, second = workload.jobs
    assert workload.left_out == 1
    assert (first.organization, second.organization) == ("group1", "user1")
    assert (first.slots, first.duration_ms, first.time_limit_ms) == (16, 61_000, 43_200_000)
    assert (second.arrival_ms, second.recorded_start_ms) == (3_801_279_000, 3_931_187_000)


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, "seth.swf", SWF)
    packed = tmp_path / "seth.swf.gz"
    packed.write_bytes(gzip.compress(SWF.encode()))
    assert read_trace(packed).jobs == read_trace(plain).jobs


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "a,b\n1,2\n", "is no trace"),
        ("x.csv", "", "is no trace"),
        ("x.swf", "1 2 3\n", "x.swf:1 has 3 fields, SWF has 18"),
        (
            "x.csv",
            "job_id,vc,num_gpu,submit_s,duration_s\na,b,one,0,1\n",
            "x.csv:2 cannot be read",
        ),
        (
            "x.csv",
            "job_id,vc,num_gpu,submit_s,duration_s\na,b,1\n",
            "x.csv:2 cannot be read",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        read_trace(written(tmp_path, name, text))


def test_a_job_wider_than_the_pool_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["replay", "compare", "--slots", "8", str(PHILLY)]) == 64
    assert "needs 32 slots, the pool has 8: say --slots 32 or more" in capsys.readouterr().err


def test_a_selection_names_the_columns_that_there_are(philly: Workload) -> None:
    with pytest.raises(RequestError, match="no job has cv=7f04ca; columns are class, org, pool"):
        selected(philly, {"cv": "7f04ca"})


def test_trace_policies_are_the_default_ones(philly: Workload) -> None:
    assert philly.policy == Policy()
