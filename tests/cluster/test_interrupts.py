"""Ctrl-C in the jobs of the embedded Spark: one line, soon, and nothing is left running or half written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from ..conftest import OF_JAVA

COMMAND = [sys.executable, "-c", "from sparkdl import main; main()"]
CONFIGURATION = """
prepare:
  output: {folder}/dataset
  source: {{format: parquet, path: {source}}}
  features: [x]
  stages: [{{kind: standardise, columns: [x]}}]
  split: {{fractions: {{}}}}
cluster: {{options: {{spark.driver.memory: 512m}}}}
"""
SECONDS = 120.0


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that take long to prepare."""
    folder = tmp_path_factory.mktemp("raw") / "rows"
    spark.range(1_000_000).selectExpr("double(id) as x", "id % 3 as label").write.parquet(str(folder))
    return folder


def found(marker: str, *, running: str | None = None) -> list[psutil.Process]:
    """All processes that a job has started, wherever they have got to, or those ``running`` a program."""
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SPARKDL_TEST") == marker and (not running or running in process.cmdline()):
                marked.append(process)
        except psutil.Error:
            continue
    return marked


def has_begun(moment: str, marker: str, folder: Path) -> bool:
    """Whether the job has come to a moment."""
    if moment == "while Spark starts":
        return bool(found(marker, running="org.apache.spark.deploy.SparkSubmit"))
    return any(folder.glob(".dataset*/train/*"))


@pytest.mark.parametrize("moment", ["while Spark starts", "while tasks write"])
def test_an_interrupted_job_ends_with_one_line_and_leaves_nothing(source: Path, tmp_path: Path, moment: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(CONFIGURATION.format(folder=tmp_path, source=source))
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}  # which Java notes
    environment["SPARKDL_TEST"] = str(tmp_path)
    arguments = [*COMMAND, "prepare", str(tmp_path / "pipeline.yaml")]
    job = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + SECONDS
    while not has_begun(moment, str(tmp_path), tmp_path):
        assert job.poll() is None and time.monotonic() < deadline, job.communicate()
        time.sleep(0.02)
    job.send_signal(signal.SIGINT)
    output, errors = job.communicate(timeout=SECONDS)
    assert (job.returncode, output) == (130, ""), errors
    assert errors.removeprefix(OF_JAVA) == "sparkdl: interrupted; nothing is left running\n"
    while left := found(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]
