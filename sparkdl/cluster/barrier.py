"""Run one function per rank in one barrier stage of Spark, and return the results."""

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import BarrierTaskContext, InheritableThread, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from sparkdl.cluster.backend import LaunchBackend
from sparkdl.cluster.connect import client_addresses, reaches_client
from sparkdl.cluster.containers import with_memory_advice
from sparkdl.cluster.departures import Departures, check_notice
from sparkdl.cluster.devices import device_of_task, devices_of_task
from sparkdl.cluster.executors import end_tasks, running_tasks
from sparkdl.cluster.launch import Launch, LogVerbosity, OnMessage, StageEnd
from sparkdl.cluster.meeting_place import MeetingPlace
from sparkdl.cluster.own_process import can_fork, run_in_fork
from sparkdl.cluster.pickling import pickle_function
from sparkdl.cluster.rank import Assignment, Rank, RankResult, run_rank
from sparkdl.cluster.relay import Relay
from sparkdl.cluster.rendezvous import Place, order_by_host, place_of
from sparkdl.cluster.resources import profile_of, ranks_of_task
from sparkdl.cluster.slots import count_ranks, wait_for_slots
from sparkdl.cluster.task_processes import run_in_processes
from sparkdl.cluster.watchdog import Timeouts
from sparkdl.errors import ConfigError
from sparkdl.sessions import (
    JVM_ERRORS,
    application_setting,
    cancel_tagged,
    is_gone,
    is_local,
    is_remote,
    tagged_jobs,
)
from sparkdl.settings import Resources

__all__ = ["driver_addresses", "run_ranks", "spark_reason"]

T = TypeVar("T")
SCHEMA = "rank int, result binary"
CANCEL_SECONDS = 15.0  # how long Spark may take to end a cancelled stage
CANCELLED = re.compile(r"\bJob \d+ cancelled\b|\[OPERATION_CANCELED\]")


def run_ranks(
    function: Callable[[Rank], T],
    num_ranks: int,
    *,
    spark: SparkSession,
    backend: LaunchBackend | None = None,
    on_message: OnMessage | None = None,
    log_verbosity: LogVerbosity = "all",
    description: str = "",
    slot_timeout: float = 30.0,
    resources: Resources | None = None,
    timeouts: Timeouts | None = None,
    stop: threading.Event | None = None,
    own_process: bool = False,
    preemption_notice: str | None = None,
) -> list[T]:
    """Call ``function(rank)`` on every rank of one barrier stage; return the results by rank. Runs on the driver.

    ``description`` is the job's name on Spark's web pages. ``backend`` is the library by which ranks exchange tensors;
    without one, they only communicate with the driver. ``resources`` replace the application's resources per task; a
    task with several GPUs has one rank per GPU, each in its own process. In a session of Spark Connect the driver is
    the client: ranks connect to it, not to the server. If they cannot reach it, they meet on rank 0's host, and Spark
    tasks, which take one more slot, fetch their messages.

    During the run, ``on_message(rank, message)`` is called in the caller's thread for each message of a rank; an error
    in it ends the run. With ``log_verbosity="all"``, the driver prints the output of ranks, with the rank in front of
    each line; with ``"log_callback_only"`` it stays in the executors' logs.

    With ``own_process``, each rank is a new process that ends with the run, so that process-wide state that a user's
    program leaves behind cannot affect a later run.

    ``timeouts`` limit how long a rank may be silent. Every rank's ``stop_requested`` becomes true when ``stop`` is set,
    when an executor that runs ranks is about to be taken away (Spark decommissions it, or the cloud gives notice: see
    ``preemption_notice`` of the settings), and when this thread is interrupted (Ctrl-C, an exit from a signal handler).
    Interrupted ranks that do not return within some seconds are cancelled. Ranks end by themselves if the driver dies.

    Raises :class:`~sparkdl.errors.ConfigError` for a function that cannot be pickled,
    :class:`~sparkdl.errors.NotEnoughSlotsError` if the slots are not free within ``slot_timeout`` seconds,
    :class:`~sparkdl.errors.RankError` if a rank fails, dies, sends no heartbeats or makes no progress, and
    :class:`~sparkdl.errors.RunCancelledError` if the job is cancelled in Spark.
    """
    if num_ranks < 1:
        raise ConfigError(f"at least one rank is needed, not {num_ranks}")
    if preemption_notice:
        check_notice(spark)
    pickled = pickle_function(function)
    addresses = None if is_remote(spark) else driver_addresses(spark)  # before waiting: raises if ranks cannot connect
    wait_for_slots(spark, num_ranks, timeout=slot_timeout, resources=resources)
    addresses = addresses or driver_addresses(spark)
    relay = None if addresses else Relay(spark, size=num_ranks)
    bind_address, host = addresses or ("", "")
    with Launch(
        num_ranks, bind_address=bind_address, host=host, timeouts=timeouts or Timeouts(), stop=stop, relay=relay
    ) as launch:
        assignment = launch.assignment(
            pickled, backend, log_verbosity, own_process=own_process, preemption_notice=preemption_notice
        )
        stage = _Stage(spark, num_ranks, assignment, launch, description or "sparkdl", resources, relay)
        return launch.follow(stage, on_message)


class _Stage:
    """The barrier stage of a run. It has its own thread, so that the caller's thread can follow and interrupt it."""

    def __init__(
        self,
        spark: SparkSession,
        num_ranks: int,
        assignment: Assignment,
        launch: Launch,
        name: str,
        resources: Resources | None,
        relay: Relay | None,
    ) -> None:
        self._description = f"{name}: {num_ranks} ranks"
        self._spark, self._num_ranks, self._assignment = spark, num_ranks, assignment
        self._launch, self._resources, self._relay = launch, resources, relay
        self._each = ranks_of_task(resources, spark)
        self._tag = f"sparkdl-{secrets.token_hex(8)}"
        self._classic = not is_remote(spark)
        watched = self._classic and not is_local(spark)
        self._departures = Departures(spark, self._tag, num_ranks // self._each) if watched else None
        self._thread = (InheritableThread if self._classic else threading.Thread)(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        deadline = time.monotonic() + CANCEL_SECONDS
        with suppress(*JVM_ERRORS, PySparkException, OSError):  # the driver's JVM is gone, and its jobs with it
            while self._thread.is_alive() and time.monotonic() < deadline and not is_gone(self._spark):
                cancel_tagged(self._spark, self._tag)
                self._thread.join(0.3)  # cancelling misses a job that is about to be submitted: repeat it
            self._launch.hang_up()  # ends ranks at once; Spark takes four seconds to end Python workers
            if self._classic:
                end_tasks(self._spark, self._tag)

    def queued(self) -> bool:
        if not self._classic:
            return True  # Spark Connect does not report it; the first rank's hello shows that all tasks have started
        with suppress(*JVM_ERRORS, OSError):
            room = count_ranks(self._spark, self._resources) or 0
            return room >= self._num_ranks and not running_tasks(self._spark, self._tag)
        return False

    def place(self, rank: int, others: Collection[int]) -> str:
        with suppress(*JVM_ERRORS, OSError):
            tasks = running_tasks(self._spark, self._tag) if self._classic else []
            silent = {(task.executor, task.host) for task in tasks if task.partition not in others}
            return " or ".join(f"executor {executor} on host {host}" for executor, host in sorted(silent))
        return ""

    def leaving(self) -> bool:
        return self._departures is not None and self._departures.noticed()

    def give_up(self, task: int) -> None:
        if self._departures:
            self._departures.give_up(task)

    def _run(self) -> None:
        try:
            profile = {"profile": profile_of(self._resources, self._spark)} if self._resources else {}
            tasks, task = self._num_ranks // self._each, _relayed_task if self._relay else _task
            tasks += self._relay is not None
            frame = self._spark.range(tasks, numPartitions=tasks)
            with tagged_jobs(self._spark, self._tag, self._description):
                rows = self._rows(frame.mapInArrow(task(self._assignment, self._each), SCHEMA, barrier=True, **profile))
            self._launch.events.put(StageEnd([RankResult(row.rank, row.result and bytes(row.result)) for row in rows]))
        except Exception as error:
            reason = with_memory_advice(spark_reason(error), self._spark)
            self._launch.events.put(StageEnd(error=reason, cancelled=CANCELLED.search(reason) is not None))

    def _rows(self, stage: DataFrame) -> list[Row]:
        if self._relay is None:
            return stage.collect()
        rows = stage.toLocalIterator()  # a server sends a partition's rows when it and all before it have ended
        host, port = json.loads(next(rows).result)
        self._relay.find(host, port)
        return list(rows)


def _task(assignment: Assignment, each: int) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function of the stage's tasks, each of which runs ``each`` consecutive ranks."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        context = BarrierTaskContext.get()
        places = _places(context.partitionId(), _hosts(context), each)
        yield _sent(*_outcomes(assignment, places, context), batches)

    return task


def _relayed_task(assignment: Assignment, each: int) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The same with a meeting place on rank 0's host. Task 0 reports where; task ``i + 1`` runs as task ``i``."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = BarrierTaskContext.get()
        number, hosts = context.partitionId() - 1, _hosts(context)[1:]
        place = _meeting_place(assignment, hosts[0], len(hosts) * each) if number == 0 else None
        with place or nullcontext():
            channel, rendezvous = json.loads(context.allGather(json.dumps(place.ports) if place else "")[1])
            if number < 0:
                outcomes, reusable = [RankResult(number, json.dumps([hosts[0], rendezvous]).encode())], True
            else:
                here = replace(
                    assignment,
                    channel=(hosts[0], channel),
                    rendezvous=replace(assignment.rendezvous, host=hosts[0], port=rendezvous),
                )
                outcomes, reusable = _outcomes(here, _places(number, hosts, each), context)
        yield _sent(outcomes, reusable, batches)

    return task


def _meeting_place(assignment: Assignment, host: str, size: int) -> MeetingPlace:
    token = assignment.rendezvous.token
    return MeetingPlace(host, size=size, secret=assignment.secret, token=token, lease=assignment.lease)


def _hosts(context: BarrierTaskContext) -> list[str]:
    """The hosts of the stage's tasks. Each task knows them; ``allGather`` would take a second."""
    return [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]


def _places(number: int, hosts: Sequence[str], each: int) -> list[Place]:
    """The places of the ranks of a task, by the hosts of all tasks."""
    order = order_by_host(hosts)
    of_ranks = [hosts[task] for task in order for _ in range(each)]
    first = order.index(number) * each
    return [replace(place_of(rank, of_ranks), task=number) for rank in range(first, first + each)]


def _outcomes(assignment: Assignment, places: Sequence[Place], context: TaskContext) -> tuple[list[RankResult], bool]:
    """The results of ranks, and whether Spark may reuse their Python worker, which it may not after a failure."""
    if len(places) > 1:
        threads = max(context.cpus() // len(places), 1)
        outcomes = run_in_processes(assignment, places, devices_of_task(context), threads=threads)
        return outcomes, all(outcome.result is not None for outcome in outcomes)
    run = partial(run_rank, assignment, *places, device=device_of_task(context), threads=context.cpus())
    apart = assignment.own_process and can_fork()
    outcome = run_in_fork(run) if apart else run()
    return [outcome], outcome.result is not None and (apart or not assignment.own_process)


def _sent(outcomes: Sequence[RankResult], reusable: bool, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """The batch that a task returns to Spark."""
    if reusable:
        for _ in batches:  # Spark reuses a Python worker only if its task has read all its input
            pass
    ranks, results = [outcome.rank for outcome in outcomes], [outcome.result for outcome in outcomes]
    return pa.RecordBatch.from_arrays([pa.array(ranks, pa.int32()), pa.array(results, pa.binary())], ["rank", "result"])


def driver_addresses(spark: SparkSession) -> tuple[str, str] | None:
    """The address to listen on and the one that ranks connect to: those that Spark uses; loopback in local mode.

    None if executors cannot reach a client of Spark Connect. Raises :class:`ConfigError` for an address that is not
    IPv4.
    """
    if is_remote(spark):
        return client_addresses(spark) if reaches_client(spark) else None
    if is_local(spark):
        return "127.0.0.1", "127.0.0.1"
    host = application_setting(spark, "spark.driver.host", "127.0.0.1")
    bind_address = application_setting(spark, "spark.driver.bindAddress", host)
    for setting, address in (("spark.driver.host", host), ("spark.driver.bindAddress", bind_address)):
        if ":" in address:
            raise ConfigError(
                f"{setting} is {address}, but ranks and driver communicate by IPv4; start Spark with {setting} set"
                " to an IPv4 address of this machine"
            )
    return bind_address, host


def spark_reason(error: Any) -> str:
    """The part of Spark's error without the JVM's stack: a Python worker's traceback, or a sentence."""
    text = str(getattr(error, "java_exception", None) or error)
    text = text.partition("\nDriver stacktrace:")[0].partition("finished unsuccessfully.\n")[-1] or text
    if "Traceback (most recent call last)" in text:
        return text[text.index("Traceback") :].partition("\n\tat ")[0].strip()
    return "Spark says: " + text.partition("\n")[0].strip()
