"""What ranks send when they average their gradients, and where messages are added up."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Fraction, Positive, Section

__all__ = [
    "AtomoOptions",
    "Averaging",
    "BFloat16Options",
    "CompressedAveraging",
    "Compression",
    "DeMoOptions",
    "Float16Options",
    "Int8Options",
    "PowerSGDOptions",
    "QSGDOptions",
    "SignOptions",
    "TopKOptions",
    "Topology",
]

Topology = Literal["ring", "butterfly", "server", "sharded_servers", "two_levels"]


class Compression(Section):
    """A way to send less than the values."""

    adds_up: ClassVar[bool] = False
    """Whether the sum of two messages is a message, so that messages can be added up on their way."""
    by_value: ClassVar[bool] = False
    """Whether each value is compressed by itself, so that servers can compress the mean again."""
    keeps_unsent: ClassVar[bool] = False
    """Whether a rank keeps what it has not sent, and sends it later (error feedback)."""
    delays: ClassVar[bool] = False
    """Whether most of a gradient is sent so late that momentum has to be applied before it is sent."""


class Float16Options(Compression):
    """Values of 16 bits with four digits; those below 6e-8 are lost."""

    kind: Literal["float16"] = "float16"
    adds_up: ClassVar[bool] = True


class BFloat16Options(Compression):
    """Values of 16 bits with three digits and the range of float32; the torch backend has them."""

    kind: Literal["bfloat16"] = "bfloat16"
    adds_up: ClassVar[bool] = True


class Int8Options(Compression):
    """Values of 8 bits, rounded to the nearest; the error is sent later."""

    kind: Literal["int8"] = "int8"
    by_value: ClassVar[bool] = True
    keeps_unsent: ClassVar[bool] = True


class QSGDOptions(Compression):
    """Few bits for each value, rounded at random so that they are right on average (arXiv 1610.02132)."""

    kind: Literal["qsgd"] = "qsgd"
    by_value: ClassVar[bool] = True
    bits: Literal[2, 4, 8] = 4
    """Bits of each value; its sign is one of them."""


class TopKOptions(Compression):
    """Ranks send the largest values, and keep the others until they have grown (DGC, arXiv 1712.01887)."""

    kind: Literal["topk"] = "topk"
    keeps_unsent: ClassVar[bool] = True
    delays: ClassVar[bool] = True
    ratio: Fraction = 0.01
    """The fraction of the values that are sent."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The momentum of SGD; each rank applies it before values are chosen."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 4
    """Epochs in which more values are sent: a quarter in the first one, and in each later one fewer by a factor."""


class PowerSGDOptions(Compression):
    """Ranks send a matrix as the product of two thin ones (Vogels et al., 2019, arXiv 1905.13727)."""

    kind: Literal["powersgd"] = "powersgd"
    adds_up: ClassVar[bool] = True
    keeps_unsent: ClassVar[bool] = True
    rank: Positive = 4
    """Columns of the thin matrices."""


class AtomoOptions(Compression):
    """Ranks send a few singular vectors of each matrix, drawn so that the estimate is unbiased (arXiv 1806.04090)."""

    kind: Literal["atomo"] = "atomo"
    atoms: Positive = 3
    """How many of each matrix."""


class SignOptions(Compression):
    """Ranks send signs, and a size for each block of values; the majority decides (arXiv 1810.05291).

    Errors are sent later (error feedback). SGD learns faster without momentum, which would repeat what arrives late,
    and with a larger rate.
    """

    kind: Literal["sign"] = "sign"
    by_value: ClassVar[bool] = True
    keeps_unsent: ClassVar[bool] = True


class DeMoOptions(Compression):
    """Ranks send the fast part of their momentum, and step by the sign of its mean (DeMo, arXiv 2411.19870)."""

    kind: Literal["demo"] = "demo"
    keeps_unsent: ClassVar[bool] = True
    delays: ClassVar[bool] = True
    coefficients: Annotated[int, Field(ge=1, le=4096)] = 32
    """How many coefficients of the cosine transform are sent for each tile of 4,096 values."""


class Averaging(Section):
    """By which topology the mean over ranks is computed."""

    topology: Topology = "ring"
    """The way that messages take while they are added up. All but ``ring``, the backend's own, need the torch backend
    and ranks that compute on CPUs."""

    @property
    def needs_torch(self) -> str | None:
        """Why Horovod cannot do it, as the end of a sentence; None if it can."""
        return None if self.topology == "ring" else f"sends messages between pairs of ranks in topology {self.topology}"


class CompressedAveraging(Averaging):
    """How the mean over ranks is computed, if ranks may send less than the values."""

    compression: (
        OneKind[
            Float16Options
            | BFloat16Options
            | Int8Options
            | QSGDOptions
            | TopKOptions
            | PowerSGDOptions
            | AtomoOptions
            | SignOptions
            | DeMoOptions
        ]
        | None
    ) = None
    """How the values that ranks send are compressed."""

    @property
    @override
    def needs_torch(self) -> str | None:
        if isinstance(self.compression, BFloat16Options):
            return "adds up values of bfloat16"
        return super().needs_torch

    @model_validator(mode="after")
    def _addable(self) -> Self:
        chosen = self.compression
        possible = ["ring", "two_levels", *(["sharded_servers"] if chosen and chosen.by_value else [])]
        if chosen and not chosen.adds_up and self.topology not in possible:
            kind = chosen.model_dump()["kind"]
            raise ValueError(
                f"messages of compression {kind} cannot be added up on the way, as topology {self.topology} does; set"
                f" topology to {' or '.join(possible)}, or compression to float16, bfloat16 or powersgd"
            )
        return self
