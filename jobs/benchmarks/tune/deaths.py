"""Random kills in the middle of a search: driver, executor, rank and MLflow's server. It ends, with each trial once.

The search runs on a real cluster, submitted again with ``--resume auto`` whenever its driver has been killed.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from mlflow import MlflowClient

import sparkdl
from benchmarks.mlflow_server import Server
from benchmarks.ports import free_ports
from benchmarks.report import Report, Target
from benchmarks.standalone import StandaloneCluster, numbered_threads, standalone_cluster
from benchmarks.tune.searching import place

__all__ = ["run"]

ROOT = Path(sparkdl.__file__).parents[1]
KINDS = ("driver", "executor", "rank", "server")
TRIALS, PAUSES = 40, (3.0, 8.0)
LIMIT_SECONDS = 1800.0
CONFIGURATION = """
train: {{dataset: {folder}/dataset, run_dir: {folder}/runs, model: cnn, epochs: 9, checkpoint_steps: 10}}
tune:
  space: {{train.learning_rate: {{log: [1e-4, 1e-1]}}, train.model_options.hidden: [32, 64, 128]}}
  stopping: asha
  trials: {trials}
  refit: none
cluster: {{num_ranks: 1, max_restarts: 10, slot_timeout: 120}}
tracking: {{uri: "{uri}", spool: {folder}/spool, offline: true}}
"""


def run(*, kills: int = 4, seed: int = 0) -> Report:
    """Runs on the driver, where no Spark may run yet."""
    draws, killed = random.Random(seed), Counter[str]()
    with place(0.1) as where, TemporaryDirectory() as name:
        folder = Path(name)
        where.spark.stop()  # the dataset is what is needed of it
        Path(where.dataset.path).rename(folder / "dataset")
        server = Server(folder, *free_ports(1))
        (folder / "conf.yaml").write_text(CONFIGURATION.format(folder=folder, trials=TRIALS, uri=server.uri))
        server.start()
        server.wait()
        started = time.monotonic()
        try:
            with standalone_cluster(folder, cores=(2, 2), pythonpath=str(ROOT)) as cluster:
                code = _search(cluster, server, folder, kills, draws, killed)
        finally:
            seconds = time.monotonic() - started
            counts, states = _trials(server.uri, folder)
            server.kill()
    twice = [number for number, count in counts.items() if count != 1]
    return Report(
        title=f"tune: {sum(killed.values())} random kills in a search of {TRIALS} trials, {seconds:.0f} s",
        columns=["what", "kills"],
        rows=[[kind, str(killed[kind])] for kind in KINDS],
        targets=[
            Target("kills", sum(killed.values()), kills),
            Target("trials that are over, and in MLflow once", len(counts) - len(twice), TRIALS),
            Target("trials more or less than once in MLflow", len(twice), 0, at_most=True),
            Target("exit code of the last driver", code, 0, at_most=True),
        ],
        note=f"Trials ended as {', '.join(f'{count} {state}' for state, count in states.items())}.",
    )


def _search(
    cluster: StandaloneCluster, server: Server, folder: Path, kills: int, draws: random.Random, killed: Counter[str]
) -> int:
    """Search until a driver ends by itself; returns how. Kills go on at random times until there were so many."""
    submit, options = ROOT / "jobs" / "tune.py", ["--conf", "spark.python.daemon.module=sparkdl.daemon"]
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    draws.shuffle(kinds)
    deadline, log = time.monotonic() + LIMIT_SECONDS, folder / "driver.log"
    while time.monotonic() < deadline:
        driver = cluster.start(submit, str(folder / "conf.yaml"), "--resume", "auto", log=log, options=options)
        while driver.poll() is None and time.monotonic() < deadline:
            if not kinds or not cluster.ranks():
                time.sleep(0.5)
                continue
            time.sleep(draws.uniform(*PAUSES))
            kind = kinds[-1]
            if _kill(kind, cluster, server, driver, draws):
                killed[kinds.pop()] += 1
        if driver.wait() != -signal.SIGKILL:
            return int(driver.returncode)
    return 1


def _kill(
    kind: str, cluster: StandaloneCluster, server: Server, driver: "subprocess.Popen[bytes]", draws: random.Random
) -> bool:
    """Kill one of them, if there is one now."""
    if kind == "server":
        server.kill()
        time.sleep(2)
        server.start()
        return True
    with suppress(psutil.Error, IndexError):
        if kind == "driver":
            for process in [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]:
                process.kill()
        else:
            ranks = [process for process in cluster.find("python") if numbered_threads(process)]
            found = ranks if kind == "rank" else cluster.find("executor")
            draws.choice(found).kill()
        return True
    return False


def _trials(uri: str, folder: Path) -> tuple[Counter[int], Counter[str]]:
    """How often MLflow has each trial that is over, and how trials ended by their records."""
    sparkdl.sync(sparkdl.Tracking(uri=uri, spool=str(folder / "spool")))
    client = MlflowClient(uri)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()], max_results=1000)
    counts = Counter(int(run.data.tags["sparkdl.trial"]) for run in runs if "sparkdl.trial" in run.data.tags)
    records = [json.loads(path.read_text()) for path in folder.glob("runs/*/trials/*.json")]
    return counts, Counter(record["state"] for record in records)
