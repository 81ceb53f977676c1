"""Asynchronous training on a cluster: tasks that come and go, and real kills of everything that can be killed."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import psutil

from benchmarks.asynchronous.coming_and_going import DYNAMIC
from benchmarks.standalone import StandaloneCluster, standalone_cluster

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "asynchronous.py"
ROWS = 106
EPOCHS = 8


class Submitted:
    """A run under dynamic allocation, watched through its log and hurt from outside."""

    def __init__(self, cluster: StandaloneCluster, dataset: str, folder: Path) -> None:
        self.cluster, self._dataset, self.folder = cluster, dataset, folder
        self.log = folder / "driver.log"
        self.slow = folder / "slow"
        """While it is there, an epoch takes half a minute of one worker."""

    def start(self, epochs: int) -> None:
        settings = DYNAMIC | {"spark.executor.cores": "1"}
        options = ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
        options += [part for item in settings.items() for part in ("--conf", "=".join(item))]
        self.process = self.cluster.start(
            PROGRAM, self._dataset, str(self.folder), str(epochs), log=self.log, options=options
        )

    def wait_for_epoch(self, number: int) -> None:
        self.wait_for(lambda: f"epoch {number}/" in self.log.read_text())

    def wait_for(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-6000:]
            time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        return list(self.cluster.tasks("worker").values())


def test_workers_come_and_go_in_the_middle_of_epochs_and_whatever_is_killed_the_run_goes_on(
    clouds, tmp_path, tmp_path_factory, empty_store, monkeypatch
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody is, and what speaks within a run does not ask
    monkeypatch.delenv("no_proxy", raising=False)
    with standalone_cluster(tmp_path_factory.mktemp("executors"), cores=(1, 1), pythonpath=str(ROOT)) as cluster:
        run = Submitted(cluster, clouds.path, tmp_path)
        run.start(EPOCHS)
        run.wait_for_epoch(1)
        assert len(run.workers()) == 1
        run.slow.touch()
        for _ in range(2):
            cluster.start_worker(1)
        run.wait_for(lambda: len(run.workers()) == 3)  # they have come in the middle of an epoch

        one, another = run.workers()[:2]
        one.parents()[1].kill()  # a worker goes with its executor
        another.kill()
        run.wait_for(lambda: len(run.workers()) == 3)

        run.process.kill()  # the driver
        run.process.wait()
        before = run.log.read_text().count("epoch ")
        run.slow.unlink()
        run.start(EPOCHS)
        run.wait_for(lambda: run.log.read_text().count("epoch ") > before)
        run.slow.touch()
        server = cluster.tasks("server")[0]
        server.kill()
        run.wait_for(lambda: cluster.tasks("server").get(0, server) != server)
        run.slow.unlink()
        assert run.process.wait(timeout=120) == 0, run.log.read_text()[-6000:]

    history = json.loads(run.log.read_text().splitlines()[-1])["history"]
    assert len(history) == EPOCHS
    lost = [epoch for epoch in history if epoch["rows"] != ROWS]
    assert len(lost) <= 1  # the epoch in which the only server was killed
    assert all(epoch["rows"] <= ROWS for epoch in history)
