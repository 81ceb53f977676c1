"""The section ``cluster``: on how many slots, and for how long a rank may be silent."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.section import Positive, Section

__all__ = ["Cluster", "RankRange", "Resources"]


class RankRange(Section):
    """How many ranks are acceptable; as many of them are started as there are slots."""

    min: Positive = 1
    max: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}; min must not be larger")
        return self


class Resources(Section):
    """What a task needs, where the application's tasks have less or more. Executors stay as they are."""

    cpus: Positive | None = None
    """Cores; by default ``spark.task.cpus``."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """A rank computes on one GPU: a task with several has a rank for each of them, which share its cores."""


class Cluster(Section):
    """Where it runs."""

    num_ranks: Positive | RankRange = 2
    """How many training processes; each takes one task slot, or one GPU of a slot with several. ``{min: 1, max: 8}``
    goes on with fewer when slots are lost, and with more when they come back."""
    resources: Resources | None = None
    """What each task gets while it trains, for example ``{cpus: 4, gpus: 1}``, without a restart of the application.
    It takes Spark 4 and a cluster. By default, what every task of the application gets."""
    servers: Positive = 1
    """Of an asynchronous ``train.strategy``: servers that hold the parameters, each in a slot beside the ranks'."""
    backend: Literal["auto", "horovod", "torch"] = "auto"
    """By which library ranks exchange tensors: Horovod, or torch.distributed. ``auto`` is Horovod where it is
    installed and does what ``train.strategy`` asks for, else torch."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How many failures in a row, without a new checkpoint between them, are answered by another attempt."""
    restart_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The pause before the first of them; it doubles each time, up to a minute."""
    start_timeout: Annotated[float, Field(gt=0)] = 180.0
    """Seconds from the start of a stage's tasks to a rank's first word: Spark starts Python, which loads PyTorch. Slots
    that other jobs hold are waited for, as long as that takes."""
    silence_timeout: Annotated[float, Field(gt=0)] = 20.0
    """Seconds without a sign of life after which a rank's process is taken for stopped or lost."""
    stall_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds without a finished batch after which a rank is taken for stuck: longer than the longest of them."""
    embedded_slots: Positive = 2
    """Slots of the Spark that is started in this process tree when none is running."""
    slot_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds to wait for enough slots on a cluster that is still starting executors."""
    options: dict[str, str | int | float | bool] = {}
    """Spark settings for the embedded session, for example ``spark.driver.memory: 4g``. A file may make harmless ones
    (memory, cores, shuffle, SQL, the web page); the command line and Python may make any."""

    @property
    def ranks(self) -> RankRange:
        """The least and the largest number of ranks."""
        asked = self.num_ranks
        return asked if isinstance(asked, RankRange) else RankRange(min=asked, max=asked)
