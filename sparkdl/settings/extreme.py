"""The section ``extreme``: hashed meta-models."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section, Seed, Storage

__all__ = ["Extreme", "LinearRankerOptions", "NoRankerOptions"]


class LinearRankerOptions(Section):
    """A linear classifier for each class orders a row's shortlist, the classes that the meta-models find likeliest.

    It is a support vector machine with the squared hinge loss. Its negatives are the rows whose shortlist names the
    class (as in Parabel's last layer: Prabhu et al., 2018) and rows that happen to draw it.
    """

    kind: Literal["linear"] = "linear"
    shortlist: Positive = 100
    """How many likely classes have a training row as a negative, unless they are the row's own; at most all classes."""
    candidates: Positive = 60
    """Classes of a row that are reordered when it is scored: more take longer, and change few predictions."""
    random_negatives: Annotated[int, Field(ge=0)] = 50
    """How many randomly drawn classes have a training row as a negative, besides."""
    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The weight of the loss against that of the squared weights: LIBLINEAR's C."""
    smallest_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Weights that are smaller are left out of the model, after training."""
    ensemble_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.35
    """The weight of the meta-models in a class's score, for which they give the mean logarithm of its probability."""
    label_texts: str | None = None
    """The split of the dataset whose rows are made of the classes' own names or descriptions, each labelled with its
    class: a class's classifier learns from them as from further rows of the class, and nothing is evaluated on them."""


class NoRankerOptions(Section):
    """No second stage: classes keep the order of the meta-models."""

    kind: Literal["none"] = "none"


class Extreme(Section):
    """How the meta-models of extreme classification are trained (MACH: arXiv 1810.04254)."""

    dataset: Storage | None = None
    """The prepared sparse dataset's folder; by default ``prepare.output`` of the same file."""
    run_dir: Storage = "output/extreme"
    """Where finished repetitions are kept, in a folder for each dataset and recipe: storage that driver and executors
    both reach. A job that is started again with the same settings goes on with the missing ones."""
    buckets: Annotated[int, Field(ge=2)] = 512
    """To how many buckets a repetition hashes the classes."""
    repetitions: Positive = 8
    """How many meta-models, each with a hash of its own: with a ranker, twice as many put hardly more rows right."""
    repetitions_per_task: Positive = 4
    """How many of them share a task, and with it each batch and each matrix product."""
    minimum_repetitions: Positive | None = None
    """How many of them are enough for an ensemble if Spark gives up on tasks; by default, all are needed."""
    hashed_features: Positive | None = None
    """To how many columns features are hashed, with another hash function in each repetition; by default, features are
    not hashed."""
    hidden: list[Positive] = [128]
    """The widths of the hidden layers; an empty list is a linear model."""
    loss: Literal["softmax", "binary"] = "softmax"
    """With several labels a row, ``softmax`` shares one distribution among their buckets, ``binary`` asks each one."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """The fraction of the hidden layers' outputs that a training step leaves out (Srivastava et al., 2014)."""
    epochs: Positive = 4
    batch_size: Positive = 256
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """The largest rate: it rises to this in the first twentieth of training, and then falls linearly to zero."""
    hashing: Literal["mixed", "random", "clusters"] = "mixed"
    """How a repetition fills its buckets: at ``random``; with ``clusters`` of classes whose rows are alike; or
    ``mixed``, which alternates between the two."""
    hash_family: Literal["universal", "murmur3", "identity"] = "universal"
    """The hash function of random buckets. ``identity`` hashes nothing: with a bucket for each class, and ``hashing:
    random``, a single repetition is an ordinary classifier."""
    ranker: OneKind[LinearRankerOptions | NoRankerOptions] = LinearRankerOptions()
    """The second stage, which reorders the likeliest classes."""
    seed: Seed = 0
    """Decides hashes, clusters, initial weights, the order of rows and random negatives."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_teacher(cls, values: Any) -> Any:
        if isinstance(values, dict) and "teacher" in values:
            raise ValueError(
                "`teacher`: repetitions that also learn from an ensemble of more of them were no better than those that"
                " learn from labels alone, so there is no such key; an ensemble teaches a network (`train.teacher`)"
            )
        return values

    @model_validator(mode="after")
    def _label_texts_are_no_training_rows(self) -> Self:
        if isinstance(self.ranker, LinearRankerOptions) and self.ranker.label_texts == "train":
            raise ValueError("ranker.label_texts is `train`: the texts of labels must have a split of their own")
        return self

    @model_validator(mode="after")
    def _nothing_to_cluster(self) -> Self:
        if self.hash_family == "identity" and self.hashing != "random":
            raise ValueError("with a bucket for each class there is nothing to cluster: set `hashing: random`, too")
        return self

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.minimum_repetitions is not None and self.minimum_repetitions > self.repetitions:
            raise ValueError(
                f"minimum_repetitions is {self.minimum_repetitions}, more than the {self.repetitions} repetitions"
            )
        return self
