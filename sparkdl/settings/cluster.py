"""The section ``cluster``: on how many slots, and for how long a rank may be silent."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.section import Positive, Section

__all__ = ["Cluster", "CutStyle", "RankLayout", "RankRange", "Resources"]

CutStyle = Literal["colwise", "rowwise"]
"""By which dimension of its weight, as PyTorch writes it, a layer is cut: its outputs, or its inputs; of an embedding
``rowwise`` cuts the words."""


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
    """How many replicas of the network there are; each trains on other rows."""
    tensor: Positive = 1
    """How many ranks share a replica by cutting layers: each rank computes a part of every layer that is wide enough
    (tensor parallelism, arXiv 1909.08053)."""
    pipeline: Positive = 1
    """How many ranks share a replica as the stages of a pipeline: each rank has some of the layers, and computes one
    microbatch while the next rank computes the one before (pipeline parallelism, arXiv 1811.06965). With ``tensor``,
    each stage is shared by so many ranks."""
    experts: Positive = 1
    """How many ranks share the experts of a network's mixtures: each rank has its own rows and some of the experts,
    which answer the rows of all (expert parallelism, arXiv 1701.06538)."""
    microbatches: Positive | None = None
    """For a pipeline: into how many microbatches a batch is cut, by default four times ``pipeline``."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """For a pipeline: ``1f1b`` starts the backward pass of a microbatch as soon as it can, and keeps the activations of
    few; ``gpipe`` runs the forward passes of all of them first. ``interleaved`` is ``1f1b`` with two stages on each
    rank that do not follow each other: ranks wait less, and send twice as much."""
    plan: dict[str, CutStyle] | None = None
    """For ``tensor``: which layers are cut and how, as in the plans of PyTorch's ``parallelize_module`` and of
    transformers: ``{"blocks.*.linear1": colwise, "blocks.*.linear2": rowwise}``. Ranks compute the layers before these
    for different rows where they can. By default, a plan is found in the network's graph."""

    @model_validator(mode="after")
    def _experts_alone(self) -> Self:
        sizes = {"tensor": self.tensor, "pipeline": self.pipeline}
        if self.experts > 1 and (others := [f"{axis} is {size}" for axis, size in sizes.items() if size > 1]):
            raise ValueError(
                f"experts is {self.experts} and {' and '.join(others)}, but ranks that share experts must have all"
                " other layers completely; set experts to 1, or the others"
            )
        if self.plan and self.tensor == 1:
            raise ValueError(
                "plan lists the layers that tensor parallelism cuts, but tensor is 1; set it to 2 or more, or leave"
                " plan out"
            )
        if self.pipeline == 1 and self.model_fields_set & {"microbatches", "schedule"}:
            raise ValueError(
                "microbatches and schedule are for a pipeline; set pipeline to 2 or more, or leave them out"
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
    """Resources of a training task, if they differ from those of the application's tasks. Executors do not change."""

    cpus: Positive | None = None
    """Cores; by default ``spark.task.cpus``."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs per task. A rank computes on one GPU: a task with several GPUs has one rank for each, and they share its
    cores."""


class Cluster(Section):
    """Where ranks run."""

    num_ranks: Positive | RankRange = 2
    """The number of training processes; each takes one task slot, or one GPU of a slot with several. With ``{min: 1,
    max: 8}``, a run goes on with fewer when slots are lost, and with more when they come back."""
    layout: RankLayout | Literal["auto"] | None = None
    """How many ranks there are along each axis, instead of ``num_ranks``: ``{data: 2, tensor: 2}`` has two replicas of
    two ranks each. With ``auto``, ``num_ranks`` ranks measure for some seconds and take the fastest layout that fits
    into their memory. By default, each rank has a replica."""
    resources: Resources | None = None
    """Resources of each training task, for example ``{cpus: 4, gpus: 1}``, without a restart of the application. This
    needs Spark 4 and a cluster. By default, those of every task of the application."""
    servers: Positive = 1
    """For an asynchronous ``train.strategy``: the number of parameter servers, each in a slot besides those of
    ranks."""
    backend: Literal["auto", "horovod", "torch"] = "auto"
    """The library with which ranks exchange tensors: Horovod, or torch.distributed. ``auto`` is Horovod if it is
    installed and supports ``train.strategy``, else torch."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How many failures in a row, without a new checkpoint between them, a run answers with another attempt."""
    restart_seconds: Annotated[float, Field(ge=0)] = 1.0
    """Seconds before the first new attempt; the pause doubles each time, up to a minute."""
    start_timeout: Annotated[float, Field(gt=0)] = 180.0
    """Seconds from the start of a stage's tasks to a rank's first message: Spark starts Python, which loads PyTorch.
    The time that a run waits for slots of other jobs does not count."""
    silence_timeout: Annotated[float, Field(gt=0)] = 20.0
    """Seconds without a heartbeat after which a rank's process counts as stopped or lost."""
    stall_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds without a finished batch after which a rank counts as stuck: set more than the longest batch takes."""
    preemption_notice: str | None = None
    """How executors learn that their host is about to be taken away: ``aws``, ``gcp`` or ``azure`` ask the metadata
    server of that cloud; any other value is the path of a file that appears then. Ranks write a checkpoint, the
    executor gets no more tasks, and the run goes on in other slots. Decommissioning by Spark is noticed without this
    setting."""
    embedded_slots: Positive = 2
    """Slots of the embedded Spark, which sparkdl starts in its own process tree if no Spark is running."""
    slot_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds to wait for enough slots on a cluster that is still starting executors."""
    options: dict[str, str | int | float | bool] = {}
    """Spark settings for the embedded session, for example ``spark.driver.memory: 4g``. A configuration file may set
    only harmless ones (memory, cores, shuffle, SQL, the web page); the command line and Python may set any."""

    @model_validator(mode="after")
    def _of_one_size(self) -> Self:
        if self.layout == "auto":
            if isinstance(self.num_ranks, RankRange):
                raise ValueError("layout: auto needs a fixed number of ranks; set num_ranks to a number")
        elif self.layout and "num_ranks" in self.model_fields_set:
            replicas, together = self.layout.replicas, self.layout.ranks_of_replica
            if self.num_ranks != replicas * together:
                raise ValueError(
                    f"layout has {replicas} x {together} = {replicas * together} ranks, but num_ranks is"
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
