"""Ranks on Spark: start them, let them find each other, hear them, bring their results home."""

from sparkdl.cluster.barrier import run_ranks
from sparkdl.cluster.local import run_local
from sparkdl.cluster.rank import Rank, current_rank
from sparkdl.cluster.session import get_session

__all__ = ["Rank", "current_rank", "get_session", "run_local", "run_ranks"]
