"""Warm launch of two ranks that all-reduce one number, from a client of Spark Connect beside a classic driver.

Both on one standalone cluster of two executors, one after the other. Each has a process of its own, because a process
has one kind of session; the first launch of each is not counted. It takes the current stack.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import click
from pyspark import __version__ as spark_version

import sparkdl
from benchmarks.launch import LAUNCHES, launch_by_sparkdl, measure
from benchmarks.report import Report, Target
from benchmarks.standalone import StandaloneCluster, standalone_cluster
from sparkdl.collectives import TorchBackend
from sparkdl.stack import has_connect

__all__ = ["run"]

JOBS, ROOT = Path(__file__).parents[1], Path(sparkdl.__file__).parents[1]
MASTER = "SPARKDL_BENCHMARK_MASTER"


def run() -> Report:
    """Start the cluster, launch from each kind of session, stop the cluster. Runs on the driver."""
    if not has_connect(spark_version):
        raise click.ClickException(f"connect takes Spark 4, and this is {spark_version}: make setup-current")
    with tempfile.TemporaryDirectory() as folder, standalone_cluster(Path(folder), pythonpath=str(ROOT)) as cluster:
        classic = _seconds(cluster, {MASTER: cluster.master_url})
        with cluster.connect_server() as port:
            remote = _seconds(cluster, {"SPARK_REMOTE": f"sc://{cluster.host}:{port}"})
    return Report(
        title="connect: two warm ranks that all-reduce once, two executor processes",
        columns=["session", "median s", "fastest s", "slowest s", "launches"],
        rows=[
            [name, median(times), min(times), max(times), str(len(times))]
            for name, times in {"classic": classic, "Spark Connect": remote}.items()
        ],
        targets=[Target("seconds over Spark Connect", median(remote), 1.5, at_most=True)],
        note="A standalone cluster; the backend is torch. The first launch of each session is not counted.",
    )


def _seconds(cluster: StandaloneCluster, address: dict[str, str]) -> list[float]:
    """The seconds of each launch from a process that finds the cluster at this address."""
    environment = cluster.environment | address | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, JOBS)))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.connect"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(f"no launch could be measured\n{done.stderr[-4000:]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print the seconds of each launch. Runs on the driver that is measured."""
    settings = sparkdl.Cluster()
    if MASTER in os.environ:
        settings = sparkdl.Cluster(options={"spark.master": os.environ[MASTER], "spark.executor.memory": "600m"})
    spark = sparkdl.get_session(settings)
    print(json.dumps(measure(partial(launch_by_sparkdl, spark, TorchBackend()), LAUNCHES)))
    spark.stop()


if __name__ == "__main__":
    main()
