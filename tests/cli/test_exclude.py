"""``gpuq submit --exclude``: what is read, what is refused, what is shown."""

from __future__ import annotations

import pytest

from gpuq.parse import parse_nodes
from ledger.errors import RequestError
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


def test_nodes_are_named_with_commas_and_again() -> None:
    assert parse_nodes(["n2,n1", " n3 ,n1"]) == ("n1", "n2", "n3")


@pytest.mark.parametrize("text", ["", "n1,", "N1", "n[1-4]", "n1 n2"])
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is not a name"):
        parse_nodes([text])


def test_it_runs_elsewhere_and_shows_what_it_excludes(gpuq: Gpuq, fleet: Fleet) -> None:
    for worker in ("n1-cpu0", "n2-cpu0"):
        fleet.ready(worker)
    fleet.post()
    result = gpuq("submit", "-q", "-x", "n1,n7", "--", "true")
    assert "no node n7 has reported yet" in result.err
    fleet.post()
    (job,) = result.ids
    assert fleet.state.jobs[JobId(job)].last is not None
    shown = gpuq("status", "--json", job).json
    assert (shown["workers"], shown["exclude"]) == (["n2-cpu0"], ["n1", "n7"])
    assert "n1, n7" in gpuq("status", job).out


def test_a_job_that_no_node_could_run_is_refused_and_not_written(gpuq: Gpuq, fleet: Fleet) -> None:
    for worker in ("n1-cpu0", "n2-cpu0"):
        fleet.ready(worker)
    fleet.post()
    result = gpuq("submit", "--exclude", "n1", "--exclude", "n2", "--", "true")
    assert (result.rc, result.out) == (64, "")
    assert result.err == "gpuq: it excludes every node on which pool 'default' is\n"
    fleet.post()
    assert fleet.state.jobs == {}
