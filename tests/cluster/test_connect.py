"""Every job from a client of Spark Connect: a server of its own over a standalone cluster, and one client for all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import reported

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "connect.py"
CLIENT_ONLY = "import sys; sys.modules |= {'py4j': None, 'pyspark.core': None}"
"""What makes a process one of the package pyspark-client, which is PySpark without these two and without the JVM's."""
BESIDE = f"sys.path.insert(0, {str(PROGRAM.parent)!r})"
RUN = f"{CLIENT_ONLY}; {BESIDE}; import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture(scope="module")
def remote(standalone) -> Iterator[str]:
    """The address of a server, which asks for a token."""
    with standalone.connect_server({"spark.connect.authenticate.token": "secret"}) as port:
        yield f"sc://localhost:{port}/;token=secret"


@pytest.fixture(scope="module")
def report(standalone, remote: str, tmp_path_factory: pytest.TempPathFactory) -> dict:
    environment = standalone.environment | {"SPARK_REMOTE": remote, "JAVA_HOME": "", "PATH": ""}
    command = [sys.executable, "-c", RUN, PROGRAM, tmp_path_factory.mktemp("client")]
    return reported(command, environment, timeout=600)


def result(report: dict, job: str) -> object:
    assert "error" not in report[job], report[job]["message"]
    return report[job]["result"]


def refused(report: dict, job: str, error: str) -> str:
    assert report[job].get("error") == error, report[job]
    return report[job]["message"]


def test_ranks_meet_at_the_client_and_the_next_launch_reuses_their_processes(report: dict) -> None:
    first, second = result(report, "first launch"), result(report, "next launch")
    assert [total for total, _ in first] == [total for total, _ in second] == [3.0, 3.0]
    assert {process for _, process in first} == {process for _, process in second}


def test_what_ranks_print_reaches_the_client(report: dict) -> None:
    assert "[rank 0] a line of a rank\n" in report["said"] and "[rank 1] a line of a rank\n" in report["said"]


def test_a_raising_rank_is_named_with_its_traceback(report: dict) -> None:
    message = refused(report, "raising", "RankError")
    assert message.startswith("Traceback") and "ValueError: boom" in message


def test_too_many_ranks_are_refused_with_both_numbers(report: dict) -> None:
    assert "3 ranks were requested, but the cluster has 2 slots" in refused(report, "too many", "NotEnoughSlotsError")


def test_interrupted_ranks_end_and_the_run_counts_as_cancelled(report: dict) -> None:
    assert "cancelled from outside" in refused(report, "cancelled", "RunCancelledError")
    assert report["cancelled"]["seconds"] < 15


def test_a_table_is_prepared_trained_on_by_a_network_beside_the_program_and_scored(report: dict) -> None:
    assert sum(result(report, "prepare").values()) == 120
    assert result(report, "train") == {"epochs": 2, "uri": "models:/points/1"}
    assert result(report, "score") == {"rows": 120, "failed": 0}


def test_workers_and_a_server_train_a_network_beside_the_program_asynchronously(report: dict) -> None:
    assert result(report, "train asynchronously") == [result(report, "prepare")["train"]] * 2


def test_a_row_that_cannot_be_scored_is_an_error_by_name(report: dict) -> None:
    assert "1 of 1 rows cannot be scored" in refused(report, "score nulls", "DataError")


def test_very_many_classes_are_trained_as_tasks(report: dict) -> None:
    assert result(report, "train-extreme") == {"repetitions": 2, "missing": []}


def test_an_estimator_fits_is_saved_and_transforms(report: dict) -> None:
    assert result(report, "estimator") == 80


def test_a_ranker_fits_and_scores(report: dict) -> None:
    assert result(report, "ranker") == 80


def test_the_type_of_a_strangers_column_is_refused_and_nothing_of_it_is_imported(report: dict) -> None:
    assert "which could run any code" in refused(report, "stranger", "DataError")


def test_what_takes_classic_spark_is_said_in_one_line(report: dict) -> None:
    assert refused(report, "condition", "ConfigError").startswith("score.where needs classic Spark")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("wrong token", "Invalid authentication token"),
        ("wrong address", "Connection refused"),
        ("token without TLS", "except for a server at sc://localhost"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_within_seconds(report: dict, mistake: str, words: str) -> None:
    message = result(report, mistake)
    assert message.startswith("sparkdl.errors.ClusterError: cannot use the Spark Connect server") and words in message
    assert report[mistake]["seconds"] < 20


def test_a_client_of_the_package_pyspark_client_is_told_that_it_needs_a_server() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    command = [sys.executable, "-c", f"{CLIENT_ONLY}; import sparkdl; sparkdl.get_session()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "set SPARK_REMOTE to the address of a Spark Connect server" in done.stderr.splitlines()[-1], done.stderr
