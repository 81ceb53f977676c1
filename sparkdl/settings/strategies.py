"""The kinds of ``train.strategy``: how replicas agree, and what can be chosen about it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from sparkdl.settings.averaging import Averaging, CompressedAveraging
from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section

__all__ = [
    "AllReduceOptions",
    "AsyncEASGDOptions",
    "AsynchronousOptions",
    "DecoupledDiLoCoOptions",
    "DeepSparkOptions",
    "DiLoCoOptions",
    "DownpourOptions",
    "EASGDOptions",
    "HogwildOptions",
    "ISTOptions",
    "LocalSGDOptions",
    "PostLocalSGDOptions",
    "ResISTOptions",
    "RoundsOptions",
    "SandblasterOptions",
    "SparkNetOptions",
    "SteppingOptions",
    "Strategies",
]

Rate = Annotated[float, Field(gt=0)]


class AllReduceOptions(CompressedAveraging):
    """Synchronous data parallelism: every step applies the mean gradient of all ranks."""

    kind: Literal["allreduce"] = "allreduce"
    shard: Literal["optimizer", "all"] | None = None
    """What is cut into shards, of which each rank keeps one: ``optimizer``: the optimizer's state and the gradients
    (ZeRO-2, arXiv 1910.02054); ``all``: the weights, too, which ranks gather one layer after another (FSDP, arXiv
    2304.11277), so that the network may be larger than a rank's memory. The steps are the same."""
    measure_noise: bool = False
    """Log the gradients' noise scale and diversity after each epoch: they say how large a batch pays."""

    @property
    @override
    def needs_torch(self) -> str | None:
        return "has ranks keep shards (shard)" if self.shard else super().needs_torch

    @model_validator(mode="after")
    def _of_shards(self) -> Self:
        if self.shard and (self.compression or self.topology != "ring" or self.measure_noise):
            key = "compression" if self.compression else "measure_noise" if self.measure_noise else "topology"
            raise ValueError(
                f"with shard, each rank gets only its shard of the summed gradients, but {key} needs the whole"
                f" gradients on all ranks; leave {key} out, or set shard to null"
            )
        return self

    @model_validator(mode="after")
    def _of_values(self) -> Self:
        if self.measure_noise and self.compression:
            raise ValueError(
                "measure_noise compares gradients with their mean, which compression only approximates; set compression"
                " to null while you measure"
            )
        return self


class LocalSGDOptions(Averaging):
    """Ranks step alone, and average their weights after every ``period`` steps (Stich, 2019, arXiv 1805.09767)."""

    kind: Literal["local_sgd"] = "local_sgd"
    period: Positive = 8
    """Optimizer steps between two averages."""
    momentum: Literal["local", "averaged"] = "local"
    """Whether each rank keeps its own moments of the optimizer, or ranks average them, too."""


class PostLocalSGDOptions(Averaging):
    """All-reduce at first, local SGD afterwards (Lin et al., 2020, arXiv 1808.07217)."""

    kind: Literal["post_local_sgd"] = "post_local_sgd"
    after_epochs: Positive = 1
    """Epochs that are trained by all-reduce."""
    period: Positive = 16
    """Optimizer steps between two averages, afterwards."""
    momentum: Literal["local", "averaged"] = "local"
    """Whether each rank keeps its own moments of the optimizer, or ranks average them, too."""


class SparkNetOptions(Averaging):
    """Local SGD as in SparkNet (Moritz et al., 2016, arXiv 1511.06051): a long period, and moments stay local."""

    kind: Literal["sparknet"] = "sparknet"
    period: Positive = 50
    """Optimizer steps between two averages: the paper has 50 for ImageNet, 10 for CIFAR-10."""


class DiLoCoOptions(CompressedAveraging):
    """Ranks take many steps alone; the mean of their changes is a gradient for an outer optimizer (arXiv 2311.08105).

    With fragments and a delay, changes are sent while training goes on (Streaming DiLoCo, arXiv 2501.18512).
    """

    kind: Literal["diloco"] = "diloco"
    period: Positive = 500
    """Inner steps between two outer steps."""
    outer_learning_rate: Rate = 0.7
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Nesterov momentum of the outer optimizer."""
    fragments: Positive = 1
    """Parts of the weights that are exchanged one after another, spread over the period."""
    delay: Annotated[int, Field(ge=0)] = 0
    """Inner steps that are taken while a fragment is being sent."""
    mixing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The fraction of its own weights that a rank keeps when a fragment arrives; the rest is of the outer weights."""

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        if self.fragments > self.period:
            raise ValueError(f"fragments is {self.fragments}, more than the {self.period} steps of a period")
        if self.delay >= self.period:
            raise ValueError(
                f"delay is {self.delay}; a fragment has to arrive within its period of {self.period} steps"
            )
        return self

    @model_validator(mode="after")
    def _without_momentum(self) -> Self:
        if self.compression and self.compression.delays:
            kind = self.compression.model_dump()["kind"]
            raise ValueError(
                f"compression {kind} includes SGD's momentum, but the outer optimizer has its own; set compression to"
                " powersgd or int8"
            )
        return self


class EASGDOptions(Averaging):
    """Ranks step alone; they and a centre are pulled towards each other (Zhang et al., 2015, arXiv 1412.6651)."""

    kind: Literal["easgd"] = "easgd"
    period: Positive = 10
    """Optimizer steps between two pulls."""
    rate: Rate | None = None
    """How far a pull moves a rank to the centre, as a fraction of their distance; by default 0.9 / number of ranks."""


class DeepSparkOptions(Averaging):
    """Elastic averaging with the period and the rate of DeepSpark (Kim et al., 2016, arXiv 1602.08191)."""

    kind: Literal["deepspark"] = "deepspark"
    period: Positive = 50
    """Optimizer steps between two pulls."""
    rate: Rate = 0.1
    """How far a pull moves a rank towards the centre, as a fraction of their distance."""


class HogwildOptions(Averaging):
    """The ranks of a host step on one copy of the weights without locks (Niu et al., 2011, arXiv 1106.5730).

    The copy is in the host's shared memory. Hosts average their copies after every ``period`` steps.
    """

    kind: Literal["hogwild"] = "hogwild"
    period: Positive = 50
    """Optimizer steps between two averages over hosts."""

    @model_validator(mode="after")
    def _between_hosts(self) -> Self:
        if self.topology == "two_levels":
            raise ValueError(
                "with hogwild only one rank of each host exchanges weights anyway; choose another topology"
            )
        return self


class RoundsOptions(Averaging):
    """Each rank trains a part of the network; the parts are assigned anew in each round."""

    period: Positive = 80
    """Optimizer steps of a round, which also ends with the epoch."""
    allreduce_first: Annotated[int, Field(ge=0)] = 0
    """Epochs at the beginning that train the whole network by all-reduce."""
    allreduce_last: Annotated[int, Field(ge=0)] = 0
    """Epochs at the end that train the whole network by all-reduce."""


class ISTOptions(RoundsOptions):
    """Each rank trains a sub-network, with different neurons in each round (Yuan et al., 2019, arXiv 1910.02120)."""

    kind: Literal["ist"] = "ist"
    period: Positive = 80
    """Optimizer steps of a round, which also ends with the epoch: the paper has 80 for two layers, 30 for three."""
    layers: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the hidden layers whose neurons are assigned to ranks; by default all, which works for a plain stack of
    layers."""
    sharded: bool = False
    """Whether each rank holds only its part of the network, so that the network may be larger than a rank's memory:
    for ``mlp``, ``bag_of_words`` and other networks of ``torch.nn.Linear`` and activations alone."""

    @model_validator(mode="after")
    def _in_parts(self) -> Self:
        if self.sharded and (self.allreduce_first or self.allreduce_last or self.layers):
            raise ValueError(
                "with sharded, no rank has the whole network, which epochs of all-reduce and layers that are not dealt"
                " would need; leave layers, allreduce_first and allreduce_last out, or set sharded"
                " to false"
            )
        return self


class ResISTOptions(RoundsOptions):
    """Each rank trains some of the residual blocks, others in each round (Dun et al., 2021, arXiv 2107.00961)."""

    kind: Literal["resist"] = "resist"
    blocks: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the residual blocks that are assigned to ranks; by default all whose output has the shape of their
    input."""


class AsynchronousOptions(Section):
    """Workers that do not wait for each other, and servers that hold the parameters (``cluster.servers``)."""


class SteppingOptions(AsynchronousOptions):
    """Each worker takes its steps without waiting for the others."""

    period: Positive
    """Optimizer steps of a worker between two pushes."""
    staleness: Annotated[int, Field(ge=0)] | None = None
    """How many pushes a worker may be ahead of the slowest one: 0 is synchronous; by default there is no bound."""
    warm_start: Annotated[int, Field(ge=0)] = 0
    """Steps at the beginning that one worker takes alone."""


class DownpourOptions(SteppingOptions):
    """Workers push gradients to servers, which step, and fetch weights (Downpour SGD: Dean et al., 2012)."""

    kind: Literal["downpour"] = "downpour"
    period: Positive = 1
    """Optimizer steps of a worker between two pushes of gradients."""
    fetch_period: Positive = 1
    """Steps between two fetches of weights; in between, a worker steps by its own gradients."""
    rule: Literal["adagrad", "sgd", "dynsgd"] = "adagrad"
    """How servers step; ``dynsgd`` is SGD with a rate that is divided by the gradient's staleness + 1 (Jiang et al.,
    2017). It takes the place of ``train.optimizer``, at the rate of ``train.learning_rate`` and its schedule."""


class AsyncEASGDOptions(SteppingOptions):
    """Workers step alone; each pulls its weights and the servers' centre towards each other (Zhang et al., 2015)."""

    kind: Literal["async_easgd"] = "async_easgd"
    period: Positive = 50
    """Optimizer steps of a worker between two pulls; the default is DeepSpark's."""
    rate: Rate | None = None
    """How far a pull moves both, as a fraction of their distance; by default 0.9 / number of ranks."""


class DecoupledDiLoCoOptions(SteppingOptions):
    """Workers step alone; servers take outer steps on the changes of some, without waiting for all (arXiv 2604.21428).

    Parameters are sent in fragments, one after another.
    """

    kind: Literal["decoupled_diloco"] = "decoupled_diloco"
    period: Positive = 25
    """Optimizer steps of a worker between two pushes; each push sends the next fragment."""
    fragments: Positive = 4
    """Into how many fragments the parameters are cut."""
    quorum: Positive = 2
    """How many workers' changes of a fragment an outer step needs; at the end of an epoch, any number is enough."""
    grace: Annotated[float, Field(ge=0)] = 0.5
    """Seconds that servers then wait for more changes. Later ones belong to the next outer step."""
    outer_learning_rate: Rate = 0.7
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Nesterov momentum of the outer optimizer."""


class SandblasterOptions(AsynchronousOptions):
    """L-BFGS on the whole training split, in portions that free workers compute (Dean et al., 2012).

    Each epoch is one step: a line search, which mostly takes one evaluation of loss and gradient.
    ``train.learning_rate`` does not apply.
    """

    kind: Literal["sandblaster"] = "sandblaster"
    memory: Positive = 10
    """How many earlier steps L-BFGS uses; each takes 16 bytes per parameter on the servers."""
    portions: Positive = 32
    """Into how many portions the rows are cut. It changes the loss only in its last digits, by rounding."""


Strategies = OneKind[
    AllReduceOptions
    | LocalSGDOptions
    | PostLocalSGDOptions
    | SparkNetOptions
    | DiLoCoOptions
    | EASGDOptions
    | DeepSparkOptions
    | HogwildOptions
    | ISTOptions
    | ResISTOptions
    | DownpourOptions
    | AsyncEASGDOptions
    | DecoupledDiLoCoOptions
    | SandblasterOptions
]
