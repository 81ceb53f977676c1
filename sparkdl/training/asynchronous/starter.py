"""Starts the tasks of an asynchronous run. Runs on the driver."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from sparkdl.cluster.pickling import pickle_function, unpickled_function
from sparkdl.settings import Cluster, Resources
from sparkdl.training.asynchronous.line import Invitation, Role
from sparkdl.training.asynchronous.serve import serve
from sparkdl.training.asynchronous.worker import work
from sparkdl.training.job import Job

__all__ = ["Starter", "TaskStarter", "Tasks"]


class Tasks(Protocol):
    """Runs independent tasks, as :class:`~sparkdl.cluster.IndependentTasks` does."""

    def submit(
        self, work: Callable[[], list[str]], *, description: str, resources: Resources | None = None
    ) -> Future[list[str]]:
        """Run a function in a task that has these resources."""

    def cancel(self, *futures: Future[list[str]]) -> None:
        """End tasks; return when they have ended."""


class Starter(Protocol):
    """Starts and ends servers and workers."""

    def start(self, role: Role, number: int, invitation: Invitation) -> Future[list[str]]:
        """Start a task; if Spark gives up on it, the future has the exception."""

    def cancel(self, *futures: Future[list[str]]) -> None:
        """End tasks; return when they have ended."""


class TaskStarter:
    """Starts servers and workers as Spark tasks."""

    def __init__(self, job: Job, cluster: Cluster, tasks: Tasks, *, name: str) -> None:
        self._tasks, self._name, self._resources = tasks, name, cluster.resources
        self._pickled: dict[Role, bytes] = {
            "server": pickle_function(partial(serve, job, servers=cluster.servers)),
            "worker": pickle_function(partial(work, job, servers=cluster.servers, workers=cluster.ranks.max)),
        }
        self.cancel = tasks.cancel

    def start(self, role: Role, number: int, invitation: Invitation) -> Future[list[str]]:
        """See :class:`Starter`."""
        pickled = self._pickled[role]

        def run() -> list[str]:
            with unpickled_function(pickled) as function:
                lines: list[str] = function(invitation, number)
            return lines

        resources = self._resources if role == "worker" else None
        return self._tasks.submit(run, description=f"{self._name}: {role} {number}", resources=resources)
