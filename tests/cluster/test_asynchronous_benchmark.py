"""Parts of `jobs/benchmark.py asynchronous` on Spark, as small as they can be."""

import threading

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle

import benchmarks
from benchmarks.asynchronous import backups, kills, regression

ROWS = 106


@pytest.fixture(scope="module", autouse=True)
def travelling() -> None:
    """Executors have no copy of the benchmarks."""
    for pickle in (cloudpickle, spark_cloudpickle):
        pickle.register_pickle_by_value(benchmarks)


def test_the_regression_ends_where_that_of_scikit_learn_does(spark, clouds) -> None:
    found = regression.measure(spark, clouds, {"batch_size": 64}, workers=1, steps=15)
    assert found.rows == ROWS
    assert abs(found.losses[-1] - found.their_loss) < 1e-4


def test_a_slow_worker_changes_no_loss_and_the_runs_leave_no_thread_to_the_driver(spark, clouds) -> None:
    before = set(threading.enumerate())
    settings = {"model": "mlp", "batch_size": 16}
    found = backups.measure(spark, clouds, settings, workers=1, steps=1, repetitions=1, counts=[7], slowness=1.5)
    alone, twice = found.dealings
    assert alone.portions == twice.portions == 7 and alone.losses == twice.losses
    assert [len(each.seconds) for each in found.dealings] == [1, 1]
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("sparkdl")]
    for thread in left:
        thread.join(timeout=10)
    assert not [thread.name for thread in left if thread.is_alive()]


def test_whatever_is_killed_each_run_ends_and_no_row_counts_twice(spark, clouds) -> None:
    settings = {"model": "mlp", "batch_size": 16, "epochs": 12}
    found = kills.measure(spark, clouds, settings, workers=1, servers=1, kills=2)
    assert found.count("worker") + found.count("server") == 2
    assert all(len(run.rows) == 12 for run in found.runs)
    assert set(found.merged(undisturbed=True)) == {ROWS}
    assert all(rows <= ROWS for rows in found.merged(undisturbed=False))
    (report,) = kills.reports(found)
    assert [target.reached for target in report.targets] == [False, True, True]
