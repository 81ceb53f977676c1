"""The section ``cluster``: on how many slots, and for how long a rank may be silent."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.section import Positive, Section

__all__ = ["Cluster", "RankLayout", "RankRange", "Resources"]


class RankRange(Section):
    """How many ranks are acceptable; as many of them are started as there are slots."""

    min: Positive = 1
    max: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}; min must not be larger")
        return self


class RankLayout(Section):
    """How ranks share the rows and the network. Their number is the product."""

    data: Positive = 1
    """Replicas of the network, each of which has other rows."""
    tensor: Positive = 1
    """Ranks that have one replica together: each layer that is wide enough is cut, and each of them computes a part
    (tensor parallelism, arXiv 1909.08053)."""
    pipeline: Positive = 1
    """Ranks that have one replica together: each has some of its layers, and computes one part of a batch while the
    next rank computes the part before (pipeline parallelism, arXiv 1811.06965)."""
    experts: Positive = 1
    """Ranks with rows of their own that share the experts of a network's mixtures: each has some of them, which answer
    the rows of all (expert parallelism, arXiv 1701.06538)."""
    microbatches: Positive | None = None
    """Of a pipeline: into how many parts a batch is cut, by default four times as many as ``pipeline``."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """Of a pipeline: ``1f1b`` goes back with a part as soon as it can, and keeps the activations of few of them;
    ``gpipe`` goes forward with all of them first. ``interleaved`` is ``1f1b`` with two stages on each rank, further
    apart: ranks wait less, and send twice as much."""

    @model_validator(mode="after")
    def _shared_in_one_way(self) -> Self:
        sizes = {"tensor": self.tensor, "pipeline": self.pipeline, "experts": self.experts}
        if len(ways := [f"{axis} is {size}" for axis, size in sizes.items() if size > 1]) > 1:
            raise ValueError(f"{' and '.join(ways)}, and ranks share a network in one way; set the others to 1")
        if self.pipeline == 1 and self.model_fields_set & {"microbatches", "schedule"}:
            raise ValueError(
                "microbatches and schedule are of a pipeline; set pipeline to 2 or more, or leave them out"
            )
        return self

    @property
    def ranks_of_replica(self) -> int:
        """How many ranks have one replica of the network together."""
        return self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """How many ranks, or groups of them that have one replica together, have rows of their own."""
        return self.data * self.experts

    @property
    def sharing(self) -> int:
        """Among how many ranks the network lies, or its experts do."""
        return self.ranks_of_replica * self.experts

    @property
    def has_parts(self) -> bool:
        """Whether each rank has a part of the network."""
        return self.sharing > 1


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
    layout: RankLayout | Literal["auto"] | None = None
    """How many ranks there are along each axis, in place of ``num_ranks``: ``{data: 2, tensor: 2}`` has two replicas of
    two ranks each. With ``auto``, ``num_ranks`` ranks measure for some seconds, and take the fastest that fits into
    their memory. By default, each rank has a replica."""
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
    preemption_notice: str | None = None
    """Where executors find out that their host is about to be taken away: ``aws``, ``gcp`` or ``azure`` ask that
    cloud's metadata server, and anything else is the path of a file that somebody makes then. Ranks write a checkpoint,
    the executor gets no more tasks, and the run goes on in other slots. Executors that Spark decommissions are noticed
    without it."""
    embedded_slots: Positive = 2
    """Slots of the Spark that is started in this process tree when none is running."""
    slot_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds to wait for enough slots on a cluster that is still starting executors."""
    options: dict[str, str | int | float | bool] = {}
    """Spark settings for the embedded session, for example ``spark.driver.memory: 4g``. A file may make harmless ones
    (memory, cores, shuffle, SQL, the web page); the command line and Python may make any."""

    @model_validator(mode="after")
    def _of_one_size(self) -> Self:
        if self.layout == "auto":
            if isinstance(self.num_ranks, RankRange):
                raise ValueError("layout: auto is chosen for one number of ranks; set num_ranks to a number")
        elif self.layout and "num_ranks" in self.model_fields_set:
            replicas, together = self.layout.replicas, self.layout.ranks_of_replica
            if self.num_ranks != replicas * together:
                raise ValueError(
                    f"layout has {replicas} x {together} = {replicas * together} ranks, and num_ranks is"
                    f" {self.num_ranks}; leave num_ranks out"
                )
        return self

    @property
    def chosen_layout(self) -> RankLayout | None:
        """The layout, unless each rank has a replica or nothing has been chosen yet."""
        return self.layout if isinstance(self.layout, RankLayout) else None

    @property
    def ranks_of_replica(self) -> int:
        """How many ranks have one replica of the network together."""
        return self.chosen_layout.ranks_of_replica if self.chosen_layout else 1

    @property
    def replicas(self) -> int:
        """The largest number of replicas of the network."""
        return self.ranks.max // self.ranks_of_replica

    @property
    def ranks(self) -> RankRange:
        """The least and the largest number of ranks."""
        layout = self.chosen_layout
        asked = layout.replicas * layout.ranks_of_replica if layout else self.num_ranks
        return asked if isinstance(asked, RankRange) else RankRange(min=asked, max=asked)
