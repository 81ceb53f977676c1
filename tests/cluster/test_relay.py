"""A client of Spark Connect that executors cannot reach: client, server and executors are in three networks.

A bridge joins them. The server's network is the bridge's own, and what the bridge does not pass on is what the client
and the executors would say to each other.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.network import ADDRESS, DRIVER, inside, network
from benchmarks.standalone import StandaloneCluster, standalone_cluster

from ..conftest import reported

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "relayed.py"
EXECUTORS = ADDRESS.format(2)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("networks")
    with network(2) as hosts, inside(hosts.bridge):
        hosts.separate()
        of_client, of_executors = hosts.hosts.values()
        with (
            standalone_cluster(folder, cores=(), pythonpath=str(ROOT), host=DRIVER) as cluster,
            cluster.connect_server() as port,
        ):
            with inside(of_executors):
                cluster.start_worker(5, host=EXECUTORS)
            with inside(of_client):
                environment = cluster.environment | {"SPARK_REMOTE": f"sc://{DRIVER}:{port}", "SPARK_LOCAL_IP": ""}
                report = reported([sys.executable, PROGRAM, folder], environment, timeout=600)
                return report | hurt(cluster, folder, environment) | killed(cluster, folder, environment)


def killed(cluster: StandaloneCluster, folder: Path, environment: dict[str, str]) -> dict:
    """What is left of a run, and what executors' logs say, when its client is killed while ranks work."""
    log = folder / "killed.log"
    with log.open("wb") as output:
        client = subprocess.Popen(
            [sys.executable, PROGRAM, folder, "killed"], env=environment, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 120
        while not all(f"[rank {rank}] at work" in log.read_text() for rank in range(2)):
            assert client.poll() is None and time.monotonic() < deadline, log.read_text()[-8000:]
            time.sleep(0.1)
        ranks = cluster.ranks()
    finally:
        client.kill()
        client.wait()
    left = psutil.wait_procs(list(ranks.values()), timeout=60)[1]
    logs = [path.read_text() for path in folder.glob("work/*/*/stderr")]
    return {"ranks": sorted(ranks), "left": len(left), "logs": "\n".join(logs)}


def hurt(cluster: StandaloneCluster, folder: Path, environment: dict[str, str]) -> dict:
    """An asynchronous run of which first a worker is killed, then the coordinator, and which Ctrl-C ends."""
    log = folder / "hurt.log"
    with log.open("wb") as output:
        client = subprocess.Popen(
            [sys.executable, PROGRAM, folder, "hurt"], env=environment, stdout=output, stderr=output
        )

    def wait_for(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 180
        while not (found := condition()) and client.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return found and client.poll() is None

    def goes_on() -> bool:
        """Whether more epochs end than have been on their way to the client."""
        before = log.read_text().count("epoch ")
        return wait_for(lambda: log.read_text().count("epoch ") > before + 5)

    try:
        assert goes_on(), log.read_text()[-8000:]
        killed = cluster.tasks("worker")[0]
        killed.kill()
        worker = wait_for(lambda: cluster.tasks("worker").get(0, killed) != killed) and goes_on()
        cluster.ranks()[0].kill()
        coordinator = wait_for(lambda: "another attempt" in log.read_text()) and goes_on()
        client.send_signal(signal.SIGINT)
        ended = client.wait(60)
    finally:
        client.kill()
        client.wait()
    deadline = time.monotonic() + 30
    while (
        left := [role for role in ("rank", "worker", "server") if cluster.tasks(role)]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    return {
        "epochs after a worker": worker,
        "epochs after the coordinator": coordinator,
        "hurt": log.read_text(),
        "ended with": ended,
        "left of the hurt run": left,
    }


def test_ranks_meet_on_rank_zeros_host_which_takes_one_slot_more(report: dict) -> None:
    assert "executors cannot reach this client" in report["said"]
    assert report["slots"] == 4
    assert report["first"] == report["next"] == [3.0, 3.0]
    assert report["too many"].startswith("NotEnoughSlotsError: 5 ranks were requested, but the cluster has 4 slots")


def test_messages_and_lines_arrive(report: dict) -> None:
    assert report["heard"] == [[0, 1 << 19], [0, 1 << 19], [1, 1 << 19], [1, 1 << 19]]
    assert "[rank 0] a line of a rank\n" in report["said"] and "[rank 1] a line of a rank\n" in report["said"]


def test_the_order_to_stop_arrives(report: dict) -> None:
    assert report["stopped"] == ["stopped", "stopped"]


def test_a_failure_is_named_with_its_rank_and_ends_the_others(report: dict) -> None:
    assert report["raising"].startswith("RankError: Traceback") and "ValueError: boom" in report["raising"]
    assert "rank 1 of 2 failed" in report["raising"]


def test_the_loss_of_the_meeting_place_ends_the_run_and_names_its_rank(report: dict) -> None:
    assert "its process ended without an error" in report["lost"] and "rank 0 of 2 failed" in report["lost"]


def test_the_ranks_of_a_killed_client_end_and_a_log_says_why(report: dict) -> None:
    assert report["ranks"] == [0, 1]
    assert report["left"] == 0
    assert "sparkdl: the client has sent nothing for 5 s: it was killed, has lost its server" in report["logs"]


def test_a_run_trains(report: dict) -> None:
    assert report["train"] == 2


def test_an_asynchronous_run_trains(report: dict) -> None:
    assert report["asynchronous"] == [report["rows"]] * 2


def test_an_asynchronous_run_takes_one_slot_more_which_is_said_before_there_is_a_run(report: dict) -> None:
    assert report["too many workers"].startswith(
        "NotEnoughSlotsError: 3 ranks, 1 servers and their coordinator were requested, but the cluster has 4 slots"
    )
    assert report["runs"] == 2  # those that trained


def test_an_asynchronous_run_outlives_a_worker_and_its_coordinator(report: dict) -> None:
    assert report["epochs after a worker"] and report["epochs after the coordinator"]
    assert "it was the coordinator" in report["hurt"] and "another attempt goes on from step" in report["hurt"]


def test_ctrl_c_ends_an_asynchronous_run_and_all_its_tasks(report: dict) -> None:
    assert report["ended with"] == -signal.SIGINT
    assert report["left of the hurt run"] == []
