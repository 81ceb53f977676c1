"""The section ``extreme``: hashed meta-models."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.section import Positive, Section, Seed, Storage

__all__ = ["Extreme"]


class Extreme(Section):
    """How the meta-models of extreme classification are trained (MACH: arXiv 1810.04254)."""

    dataset: Storage | None = None
    """The prepared sparse dataset's folder; by default ``prepare.output`` of the same file."""
    run_dir: Storage = "output/extreme"
    """Where finished repetitions are kept, in a folder for each dataset and recipe: storage that driver and executors
    both reach. A job that is started again with the same settings goes on with the missing ones."""
    buckets: Annotated[int, Field(ge=2)] = 512
    """What the classes of a repetition are hashed to."""
    repetitions: Positive = 16
    """How many meta-models, each with a hash of its own."""
    repetitions_per_task: Positive = 8
    """How many of them share a task, and with it each batch and each matrix product."""
    minimum_repetitions: Positive | None = None
    """With how many of them the ensemble is finished if Spark gives up on tasks; by default, it takes all of them."""
    hashed_features: Positive | None = None
    """To how many columns features are hashed, by another function in each repetition; by default each has its own
    weights."""
    hidden: list[Positive] = [128]
    """The widths of the hidden layers; an empty list is a linear model."""
    loss: Literal["softmax", "binary"] = "softmax"
    """With several labels a row, ``softmax`` shares one distribution among their buckets, ``binary`` asks each one."""
    epochs: Positive = 3
    batch_size: Positive = 256
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """Climbs to this in the first twentieth of training, then falls to zero in a straight line."""
    hash_family: Literal["universal", "murmur3", "identity"] = "universal"
    """``identity`` hashes nothing: with a bucket for each class, a single repetition is an ordinary classifier."""
    seed: Seed = 0
    """Decides hashes, initial weights and the order of rows."""

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.minimum_repetitions is not None and self.minimum_repetitions > self.repetitions:
            raise ValueError(
                f"minimum_repetitions is {self.minimum_repetitions}, more than the {self.repetitions} repetitions"
            )
        return self
