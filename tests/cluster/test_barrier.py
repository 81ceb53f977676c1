"""Ranks in a barrier stage of the embedded Spark."""

import os
import signal
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
import torch
from pyspark.sql import SparkSession

from sparkdl.cluster import Rank, Timeouts, get_session, run_ranks, wait_for_slots
from sparkdl.collectives import Backend
from sparkdl.errors import ConfigError, NotEnoughSlotsError, RankError, RunCancelledError
from sparkdl.sessions import is_local
from sparkdl.settings import Cluster


def all_reduce(backend: Backend, rank: Rank) -> tuple[int, float, int]:
    with backend.connect() as collectives:
        total = collectives.all_reduce(torch.tensor([rank.rank + 1.0]), op="sum")
    return rank.rank, total.item(), os.getpid()


def sums(spark: SparkSession, backend: Backend, size: int = 2) -> list[float]:
    return [total for _, total, _ in run_ranks(partial(all_reduce, backend), size, spark=spark, backend=backend)]


def wait_until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_results_come_back_in_the_order_of_ranks(spark: SparkSession) -> None:
    assert run_ranks(lambda rank: (rank.rank, rank.size), 2, spark=spark) == [(0, 2), (1, 2)]


def test_ranks_reduce_to_the_same_sum(backend: Backend, spark: SparkSession) -> None:
    assert sums(spark, backend) == [
        3.0,
        3.0,
    ]


def test_a_rank_knows_its_place_and_its_share_of_the_machine(spark: SparkSession) -> None:
    ranks = run_ranks(lambda rank: (rank.local_rank, rank.local_size, rank.device, rank.threads), 2, spark=spark)
    assert ranks == [(0, 2, "cpu", 1), (1, 2, "cpu", 1)]


def test_ranks_whose_slots_another_job_holds_are_not_late(spark: SparkSession) -> None:
    busy = threading.Thread(target=lambda: spark.range(1, numPartitions=1).foreach(lambda _: time.sleep(9)))
    busy.start()
    assert wait_until(lambda: len(spark.sparkContext.statusTracker().getActiveStageIds()) > 0)
    try:
        assert run_ranks(lambda rank: rank.rank, 2, spark=spark, timeouts=Timeouts(start_timeout=5)) == [0, 1]
    finally:
        busy.join()


def test_one_rank_is_enough(backend: Backend, spark: SparkSession) -> None:
    assert sums(spark, backend, 1) == [1.0]


def test_python_workers_are_reused_by_the_next_launch(backend: Backend, spark: SparkSession) -> None:
    first = {process for _, _, process in run_ranks(partial(all_reduce, backend), 2, spark=spark, backend=backend)}
    second = {process for _, _, process in run_ranks(partial(all_reduce, backend), 2, spark=spark, backend=backend)}
    assert first == second


def test_messages_arrive_in_the_callers_thread_in_order(spark: SparkSession) -> None:
    received = []

    def send(rank: Rank) -> None:
        for step in range(100):
            rank.send("step", step=step)

    def receive(rank: int, message: dict) -> None:
        received.append((threading.current_thread(), rank, message))

    run_ranks(send, 2, spark=spark, on_message=receive)
    assert {thread for thread, _, _ in received} == {threading.current_thread()}
    for rank in range(2):
        messages = [message for _, sender, message in received if sender == rank]
        assert messages == [{"kind": "step", "step": step} for step in range(100)]


def test_what_ranks_print_reaches_the_driver_whole_with_the_rank_in_front(spark: SparkSession, capfd) -> None:
    def speak(rank: Rank) -> None:
        for number in range(500):
            print("line", number)
        os.system("echo from a child process")
        print("x" * 100_000)
        sys.stderr.write("no newline at the end")

    run_ranks(speak, 2, spark=spark)
    output = capfd.readouterr().out.splitlines()
    for rank in range(2):
        lines = [line.removeprefix(f"[rank {rank}] ") for line in output if line.startswith(f"[rank {rank}] ")]
        assert lines[:501] == [*(f"line {number}" for number in range(500)), "from a child process"]
        assert "".join(lines[501:]) == "x" * 100_000 + "no newline at the end"


def test_with_log_callback_only_the_driver_stays_silent(spark: SparkSession, capfd) -> None:
    run_ranks(lambda rank: print("to the executor's log"), 2, spark=spark, log_verbosity="log_callback_only")
    assert "[rank" not in capfd.readouterr().out


def test_a_raising_rank_arrives_whole_with_its_own_traceback_first(
    backend: Backend, spark: SparkSession, capfd
) -> None:
    def fail(rank: Rank) -> None:
        with backend.connect() as collectives:
            if rank.rank == 1:
                raise ValueError("the answer is not 41")
            collectives.barrier()

    with pytest.raises(RankError) as caught:
        run_ranks(fail, 2, spark=spark, backend=backend)
    message = str(caught.value)
    assert message.startswith("Traceback")
    assert 'raise ValueError("the answer is not 41")' in message.partition("rank 1 of 2")[0]
    assert caught.value.rank == 1
    assert caught.value.exception_type == "ValueError"
    shown = message + capfd.readouterr().err
    assert "at org.apache.spark" not in shown
    assert "sparkdl/cluster/rank.py" not in message


def test_a_rank_that_fails_while_others_compute_does_not_wait_for_them(spark: SparkSession) -> None:
    def fail(rank: Rank) -> None:
        if rank.rank == 1:
            raise ValueError("early")
        time.sleep(120)

    started = time.monotonic()
    with pytest.raises(RankError, match="early"):
        run_ranks(fail, 2, spark=spark)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("collective", [True, False])
def test_a_killed_rank_is_an_error_and_not_a_hang(
    backend: Backend, spark: SparkSession, capfd, collective: bool
) -> None:
    def die(rank: Rank) -> None:
        with backend.connect() as collectives:
            collectives.barrier()
            if rank.rank == 1:
                rank.send("goodbye")
                os.kill(os.getpid(), signal.SIGKILL)
            if collective:
                collectives.barrier()
            else:
                time.sleep(120)

    killed = []
    with pytest.raises(
        RankError, match=r"killed, out of memory, or crashed[\s\S]*rank 1 of 2 failed on host"
    ) as caught:
        run_ranks(die, 2, spark=spark, backend=backend, on_message=lambda *_: killed.append(time.monotonic()))
    assert time.monotonic() - killed[0] < 15
    assert caught.value.rank == 1
    assert "at org.apache.spark" not in str(caught.value) + capfd.readouterr().err


def test_after_a_failure_the_next_launches_work(backend: Backend, spark: SparkSession) -> None:
    for _ in range(2):
        assert sums(spark, backend) == [
            3.0,
            3.0,
        ]


def test_more_ranks_than_slots_says_both_numbers_at_once(spark: SparkSession) -> None:
    started = time.monotonic()
    with pytest.raises(NotEnoughSlotsError, match="5 ranks were requested, but this local Spark has 2 slots"):
        run_ranks(lambda rank: None, 5, spark=spark)
    assert time.monotonic() - started < 15, "it waited for executors, of which local Spark gets no more"


def test_a_run_that_can_do_with_less_takes_the_slots_there_are(spark: SparkSession) -> None:
    assert wait_for_slots(spark, 5, timeout=30, minimum=1) == 2
    with pytest.raises(NotEnoughSlotsError, match="3 to 5 ranks were requested, but this local Spark has 2 slots"):
        wait_for_slots(spark, 5, timeout=30, minimum=3)


def test_local_spark_has_no_other_host_to_go_to(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"cluster.preemption_notice is for clusters"):
        run_ranks(lambda rank: None, 2, spark=spark, preemption_notice="aws")


def test_a_function_that_cannot_be_pickled_is_named_with_the_culprit(spark: SparkSession) -> None:
    lock = threading.Lock()

    def train(rank: Rank) -> None:
        lock.acquire()

    with pytest.raises(ConfigError, match=r"train'.*lock \(a _thread.lock\) cannot be pickled"):
        run_ranks(train, 2, spark=spark)


def test_a_result_that_cannot_be_pickled_says_so(spark: SparkSession) -> None:
    with pytest.raises(RankError, match="returned a generator, which cannot be pickled"):
        run_ranks(lambda rank: (number for number in range(3)), 2, spark=spark)


def test_a_python_without_the_packages_is_an_error_that_names_the_module(
    backend: Backend, spark: SparkSession, tmp_path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    before = spark.sparkContext.pythonExec
    spark.sparkContext.pythonExec = str(tmp_path / "bare" / "bin" / "python")
    try:
        with pytest.raises(RankError, match=r"^Traceback[\s\S]*ModuleNotFoundError: No module named") as caught:
            run_ranks(partial(all_reduce, backend), 2, spark=spark, backend=backend)
    finally:
        spark.sparkContext.pythonExec = before
    assert "at org.apache.spark" not in str(caught.value)


def test_exiting_from_the_function_is_a_failure(spark: SparkSession) -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(lambda rank: sys.exit(3), 2, spark=spark)
    assert caught.value.exception_type == "SystemExit"


def test_an_error_in_on_message_ends_the_run(backend: Backend, spark: SparkSession) -> None:
    def send(rank: Rank) -> None:
        rank.send("step")
        time.sleep(120)

    def receive(rank: int, message: dict) -> None:
        raise OSError("the disk is full")

    started = time.monotonic()
    with pytest.raises(OSError, match="the disk is full"):
        run_ranks(send, 2, spark=spark, on_message=receive)
    assert time.monotonic() - started < 15
    assert sums(spark, backend) == [
        3.0,
        3.0,
    ]


def test_a_run_leaves_the_process_of_the_rank_as_it_found_it(backend: Backend, spark: SparkSession) -> None:
    def look(rank: Rank) -> tuple[set[str], int, int]:
        time.sleep(0.5)  # the heartbeat's thread has found its executor by then
        return set(os.environ), psutil.Process().num_fds(), threading.active_count()

    def held() -> list[tuple[int, int]]:
        return sorted(found[1:] for found in run_ranks(look, 2, spark=spark, backend=backend))

    sums(spark, backend)
    given = run_ranks(look, 2, spark=spark, backend=backend)[0][0] - run_ranks(look, 2, spark=spark)[0][0]
    assert len(given) >= 6
    first = held()
    for _ in range(3):
        sums(spark, backend)
    assert held() == first

    def environment(batches):
        list(batches)
        import pyarrow as pa

        yield pa.RecordBatch.from_arrays([pa.array(sorted(given & set(os.environ)))], ["name"])

    assert spark.range(2, numPartitions=2).mapInArrow(environment, "name string").count() == 0


def test_ranks_that_have_all_cores_of_the_machine_keep_to_their_own(spark: SparkSession) -> None:
    cores = os.sched_getaffinity(0)
    own = [{core} for core in sorted(cores)] if len(cores) == 2 else [cores, cores]
    assert run_ranks(lambda _: os.sched_getaffinity(0), 2, spark=spark) == own


def test_the_longest_of_messages_arrives_cut_off(spark: SparkSession) -> None:
    def fail(rank: Rank) -> None:
        raise ValueError("\0" * 1_000_000)

    with pytest.raises(RankError) as caught:
        run_ranks(fail, 1, spark=spark)
    assert caught.value.exception_type == "ValueError"


def test_everything_listens_on_loopback_only(spark: SparkSession) -> None:
    def listening() -> set[str]:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        connections = [each for process in processes for each in process.net_connections("tcp")]
        return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}

    addresses = set()
    run_ranks(
        lambda rank: rank.send("look"), 2, spark=spark, on_message=lambda rank, message: addresses.update(listening())
    )
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_the_running_session_is_used_by_whoever_asks(spark: SparkSession) -> None:
    assert get_session(Cluster(embedded_slots=7)) is spark


def test_nothing_is_left_over_on_the_driver(backend: Backend, spark: SparkSession) -> None:
    sums(spark, backend)
    driver = psutil.Process()
    ports = [c.laddr.port for c in driver.net_connections() if c.status == psutil.CONN_LISTEN]
    threads = set(threading.enumerate())
    sums(spark, backend)
    assert [c.laddr.port for c in driver.net_connections() if c.status == psutil.CONN_LISTEN] == ports
    assert wait_until(lambda: not [t for t in {*threading.enumerate()} - threads if t.name.startswith("sparkdl")])


def test_a_function_that_replaces_stdout_keeps_its_result_and_leaves_the_worker_in_order(
    spark: SparkSession, capfd
) -> None:
    def replace(rank: Rank) -> int:
        class Tee:
            def __init__(self, inner) -> None:
                self.inner = inner

            def write(self, text: str) -> int:
                return self.inner.write(text)

            def flush(self) -> None:
                self.inner.flush()

        sys.stdout = Tee(sys.stdout)  # type: ignore[assignment]
        print("through the tee")
        return os.getpid()

    for verbosity in ("log_callback_only", "all", "all"):
        processes = run_ranks(replace, 2, spark=spark, log_verbosity=verbosity)
    assert capfd.readouterr().out.count("through the tee") == 4
    assert sorted(run_ranks(lambda rank: os.getpid(), 2, spark=spark)) == sorted(processes)


def test_cancelling_the_callers_job_group_cancels_the_run_and_nothing_else(
    backend: Backend, spark: SparkSession
) -> None:
    context = spark.sparkContext

    def wait(rank: Rank) -> None:
        rank.send("here")
        while not rank.stop_requested:
            time.sleep(0.02)

    context.setJobGroup("mine", "the caller's")
    try:
        with pytest.raises(RunCancelledError, match="mine"):
            run_ranks(wait, 2, spark=spark, on_message=lambda *_: context.cancelJobGroup("mine"))
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.getLocalProperty("spark.job.description") == "the caller's"
        assert sums(spark, backend) == [
            3.0,
            3.0,
        ]
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)


def test_a_thread_of_the_callers_uses_the_running_session_and_changes_nothing(spark: SparkSession) -> None:
    before = spark.conf.get("spark.master"), spark.conf.get("spark.app.name")
    with ThreadPoolExecutor(1) as pool:
        options = {"spark.app.name": "another"}
        found = pool.submit(get_session, Cluster(embedded_slots=7, options=options)).result()
    assert found.sparkContext is spark.sparkContext
    assert (spark.conf.get("spark.master"), spark.conf.get("spark.app.name")) == before


def test_where_spark_runs_is_not_what_a_session_was_told_since(spark: SparkSession) -> None:
    before = spark.conf.get("spark.master")
    spark.conf.set("spark.master", "spark://elsewhere:7077")
    try:
        assert is_local(spark)
    finally:
        spark.conf.set("spark.master", before)
