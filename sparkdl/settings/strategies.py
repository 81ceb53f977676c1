"""The kinds of ``train.strategy``: how replicas agree, and what can be chosen about it."""

from typing import Literal

from sparkdl.settings.section import OneKind, Section

__all__ = ["AllReduceOptions", "Strategies"]


class AllReduceOptions(Section):
    """Synchronous data parallelism: every step applies the mean gradient of all ranks, found by ring all-reduce."""

    kind: Literal["allreduce"] = "allreduce"


Strategies = OneKind[AllReduceOptions]
