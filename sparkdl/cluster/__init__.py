"""Ranks on Spark: how they start, find each other, report to the driver, and return results; how lost ones are noticed.

A rank whose process or executor died is noticed in ``channel.py`` (its connection ends), a silent or stuck one in
``watchdog.py``, and an executor that is about to be taken away in ``departures.py``. ``launch.py`` acts on all three.
"""

from sparkdl.cluster.backend import LaunchBackend
from sparkdl.cluster.barrier import driver_addresses, run_ranks, spark_reason
from sparkdl.cluster.containers import ContainerMemory, container_memory
from sparkdl.cluster.devices import device_of_task, limited_threads, retained_memory, returned_memory, roam
from sparkdl.cluster.free_memory import free_memory
from sparkdl.cluster.independent_tasks import IndependentTasks, run_tasks
from sparkdl.cluster.interrupts import exit_on_sigterm, stop_spark
from sparkdl.cluster.launch import OnMessage
from sparkdl.cluster.local import run_local
from sparkdl.cluster.rank import Rank, current_rank
from sparkdl.cluster.session import get_session
from sparkdl.cluster.slots import count_ranks, count_slots, wait_for_ranks, wait_for_slots
from sparkdl.cluster.watchdog import Timeouts

__all__ = [
    "ContainerMemory",
    "IndependentTasks",
    "LaunchBackend",
    "OnMessage",
    "Rank",
    "Timeouts",
    "container_memory",
    "count_ranks",
    "count_slots",
    "current_rank",
    "device_of_task",
    "driver_addresses",
    "exit_on_sigterm",
    "free_memory",
    "get_session",
    "limited_threads",
    "retained_memory",
    "returned_memory",
    "roam",
    "run_local",
    "run_ranks",
    "run_tasks",
    "spark_reason",
    "stop_spark",
    "wait_for_ranks",
    "wait_for_slots",
]
