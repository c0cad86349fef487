"""``submit --notify``: ends of every sort reach a web server, from real processes."""

from __future__ import annotations

from pathlib import Path

from ledger.events import JobState
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tests.waiting import wait_until
from tests.webhook import Webhook, webhook

TIME_SCALE = 6


def told(hook: Webhook) -> dict[str, str]:
    return {post["name"]: post["state"] for post in hook.posts}


def test_a_web_server_is_told_of_each_end_also_of_what_never_began(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster: Cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    for name, rc in (("good.sh", 0), ("bad.sh", 3), ("held.sh", 0), ("late.sh", 0), ("mute.sh", 0)):
        cluster.script(name, rc=rc)
    with webhook() as hook:
        cluster.submit("--notify", hook.url, "good.sh", "bad.sh")
        (held,) = cluster.submit("--notify", hook.url, "--hold", "held.sh")
        cluster.submit("--notify", hook.url, "--hold", "--deadline", "1s", "late.sh")
        (mute,) = cluster.submit("mute.sh")
        cluster.gpuq("cancel", held)
        expected = {
            "good.sh": "COMPLETED",
            "bad.sh": "FAILED",
            "held.sh": "CANCELLED",
            "late.sh": "EXPIRED",
        }
        wait_until(lambda: told(hook) == expected, deadline_s=60, what="all ends are told")
        cluster.wait_for_state(mute, JobState.COMPLETED)

        # Another leader finds noted what was told, and tells of what ends from now on.
        cluster.kill_leader()
        cluster.submit("--notify", hook.url, "--name", "after", "good.sh")
        wait_until(lambda: "after" in told(hook), deadline_s=60, what="the new leader tells")
        assert len(hook.posts) == 5
    cluster.verified()
