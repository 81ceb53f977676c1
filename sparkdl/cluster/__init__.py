"""Ranks on Spark: start them, let them find each other, hear them, bring their results home."""

from sparkdl.cluster.barrier import run_ranks
from sparkdl.cluster.devices import device_of_task, limited_threads, retained_memory
from sparkdl.cluster.local import run_local
from sparkdl.cluster.rank import Rank, current_rank
from sparkdl.cluster.session import get_session

__all__ = [
    "Rank",
    "current_rank",
    "device_of_task",
    "get_session",
    "limited_threads",
    "retained_memory",
    "run_local",
    "run_ranks",
]
