"""The coordinator on an executor, for clients that executors cannot reach: it runs as rank 0 of a launch of one rank.

Its messages reach the client as those of ranks do (:mod:`sparkdl.cluster.relay`). It cannot start tasks itself, and
asks the client to. When a task has ended, the client starts a short task that tells the coordinator.
"""

import socket
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pyspark.sql import SparkSession

from sparkdl.cluster import IndependentTasks, OnMessage, Rank, Timeouts, run_ranks, wait_for_ranks
from sparkdl.cluster.heartbeat import MAX_TEXT
from sparkdl.errors import RankError, SparkdlError
from sparkdl.parameters import Connection, Credentials, Endpoint
from sparkdl.settings import Cluster, RankRange
from sparkdl.training.asynchronous.follow import follow
from sparkdl.training.asynchronous.line import Invitation, Role
from sparkdl.training.asynchronous.starter import TaskStarter
from sparkdl.training.attempts import told
from sparkdl.training.job import Job, TrainingResult

__all__ = ["Outcome", "train_away"]

SAY_SECONDS = 10.0  # timeout of a call to the coordinator
AGAIN_SECONDS = 1.0  # pause before a call that failed is repeated


@dataclass(frozen=True)
class Outcome:
    """What the coordinator returns: the result of training, or an error that another attempt would meet again."""

    found: TrainingResult | SparkdlError

    def result(self) -> TrainingResult:
        """The result of training. Raises the error if there was one."""
        if isinstance(self.found, SparkdlError):
            raise self.found
        return self.found


def train_away(job: Job, cluster: Cluster, spark: SparkSession, *, on_message: OnMessage, name: str) -> Outcome:
    """Train from the job's checkpoint, if it has one.

    Runs on the driver. The number of workers is limited to the slots that are free now: a worker that waits for one
    would take the slot of the task that fetches the coordinator's messages. Raises :class:`RankError` when the
    coordinator is lost.
    """
    size = wait_for_ranks(spark, cluster, servers=cluster.servers)
    cluster = cluster.model_copy(update={"num_ranks": RankRange(min=cluster.ranks.min, max=size)})
    credentials = Credentials.create()
    with IndependentTasks(spark) as tasks:
        agent = _Agent(TaskStarter(job, cluster, tasks, name=name), tasks, cluster, credentials, on_message)
        try:
            (outcome,) = run_ranks(
                partial(_coordinate, job, cluster, credentials),
                1,
                spark=spark,
                on_message=agent.receive,
                description=f"{name}: coordinator",
                slot_timeout=cluster.slot_timeout,
                timeouts=Timeouts(start_timeout=cluster.start_timeout, silence_timeout=cluster.silence_timeout),
            )
        except RankError as error:
            raise told(error, "it was the coordinator, without which workers and servers cannot continue") from None
        finally:
            agent.closed = True
    return outcome


class _Agent:
    """Starts and cancels tasks for the coordinator, and tells it which have ended. Runs on the driver."""

    def __init__(
        self,
        starter: TaskStarter,
        tasks: IndependentTasks,
        cluster: Cluster,
        credentials: Credentials,
        on_message: OnMessage,
    ) -> None:
        """``on_message`` receives the messages that are not requests of the coordinator."""
        self._starter, self._tasks, self._cluster = starter, tasks, cluster
        self._credentials, self._on_message = credentials, on_message
        self._started: list[Future[list[str]]] = []
        self.closed = False
        """Whether the coordinator has ended."""

    def receive(self, rank: int, message: dict[str, Any]) -> None:
        """Carry out a request of the coordinator."""
        match message:
            case {"kind": "start", "role": role, "number": number, "coordinator": coordinator, "answer": answer}:
                timeouts = self._cluster.silence_timeout, self._cluster.stall_timeout
                future = self._starter.start(role, number, Invitation(coordinator, self._credentials, *timeouts))
                future.add_done_callback(partial(self._tell, answer, len(self._started)))
                self._started.append(future)
            case {"kind": "cancel", "tasks": tasks}:  # in a thread: it takes seconds, and other messages arrive
                futures = [self._started[task] for task in tasks]
                threading.Thread(target=self._starter.cancel, args=futures, name="sparkdl-cancel", daemon=True).start()
            case _:
                self._on_message(rank, message)

    def _tell(self, address: str, task: int, ended: Future[list[str]]) -> None:
        """Tell the coordinator that a task has ended; repeat the call until it succeeds."""

        def repeat(telling: Future[list[str]]) -> None:
            if telling.exception() and not self.closed:
                time.sleep(AGAIN_SECONDS)
                self._tell(address, task, ended)

        if not self.closed:
            error = ended.exception()
            saying = partial(_say, address, self._credentials, task, str(error)[:MAX_TEXT] if error else None)
            self._tasks.submit(saying, description="sparkdl: a task has ended").add_done_callback(repeat)


def _say(address: str, credentials: Credentials, task: int, error: str | None) -> list[str]:
    """Tell the coordinator that a task has ended. Runs in a task."""
    line = Connection(address, credentials, timeout=SAY_SECONDS)
    line.call("ended", task=task, error=error)
    line.close()
    return []


def _coordinate(job: Job, cluster: Cluster, credentials: Credentials, rank: Rank) -> Outcome:
    """Coordinate the run, as the driver does where tasks can reach it. Runs on rank 0."""

    def tell(_: int, message: dict[str, Any]) -> None:
        if rank.stop_requested:
            raise KeyboardInterrupt
        rank.send(**message)

    address = socket.gethostbyname(rank.host)
    with _ClientsStarter(rank, address, credentials) as starter:
        try:
            found = follow(
                job,
                cluster,
                starter,
                address,
                address,
                on_message=tell,
                checkpoint=job.checkpoint,
                credentials=credentials,
            )
        except SparkdlError as error:
            return Outcome(error)
    return Outcome(found)


class _ClientsStarter:
    """Asks the client to start and cancel tasks. Used as a context manager on rank 0."""

    def __init__(self, rank: Rank, address: str, credentials: Credentials) -> None:
        self._rank = rank
        self._started: list[Future[list[str]]] = []
        self._endpoint = Endpoint(address, credentials, {"ended": self._end})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoint.shutdown()

    def start(self, role: Role, number: int, invitation: Invitation) -> Future[list[str]]:
        """See :class:`~sparkdl.training.asynchronous.starter.Starter`."""
        self._started.append(Future())
        where = {"coordinator": invitation.address, "answer": self._endpoint.address}
        self._rank.send("start", role=role, number=number, **where)
        return self._started[-1]

    def cancel(self, *futures: Future[list[str]]) -> None:
        """See :class:`~sparkdl.training.asynchronous.starter.Starter`. A client that stops the run needs no request."""
        numbers = [number for number, each in enumerate(self._started) if each in futures and not each.done()]
        if numbers and not self._rank.stop_requested:
            self._rank.send("cancel", tasks=numbers)
            wait(futures)

    def _end(self, task: int, error: str | None) -> None:
        future = self._started[task]
        if future.done():  # a repeated call
            return
        if error is None:
            future.set_result([])
        else:
            future.set_exception(RuntimeError(error))
