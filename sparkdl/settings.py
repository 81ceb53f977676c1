"""The settings of a pipeline.

A pipeline's file has the sections ``prepare``, ``train``, ``extreme``, ``score``, ``cluster`` and ``tracking``; each is
a frozen class here, and the text under each field is its documentation. The same classes are the arguments of
:func:`sparkdl.prepare`, :func:`sparkdl.train` and :func:`sparkdl.score`, so that a notebook and a job mean the same
thing by the same word.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sparkdl.errors import ConfigError
from sparkdl.masking import masked

__all__ = [
    "Cluster",
    "Extreme",
    "Gate",
    "Prepare",
    "RankRange",
    "Recipe",
    "Score",
    "Settings",
    "Source",
    "Split",
    "Stage",
    "Tracking",
    "Train",
]


def _absolute(path: str) -> str:
    """A plain path made absolute: an executor's working directory is not the driver's. URIs stay as they are."""
    is_uri = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path)
    return path if is_uri else str(Path(path).expanduser().absolute())


def _local(path: str) -> str:
    if "://" in path:
        raise ValueError("this must be a folder that can be appended to, not a URI")
    return str(Path(path).expanduser().absolute())


Storage = Annotated[str, AfterValidator(_absolute)]
Folder = Annotated[str, AfterValidator(_local)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """What all sections share: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What is shown of a section: no secrets."""
        for name, value in super().__repr_args__():
            yield name, value if isinstance(value, Section) else masked(value, name=name or "")


class Source(Section):
    """Where raw rows come from."""

    format: Literal["parquet", "csv", "json", "orc", "table", "libsvm", "idx", "images", "xc", "wordnet"]
    """``table`` reads the catalog; ``idx`` is the format of MNIST; ``images`` a folder with a sub-folder per class;
    ``xc`` the format of the Extreme Classification Repository; ``wordnet`` the folder with its ``data.*`` files."""
    path: str | dict[str, str]
    """A file, a folder, a glob or a URI that Spark can read; for ``table`` the table's name. ``xc`` also takes a file
    for each split, ``{train: ..., test: ...}``."""
    options: dict[str, str | int | float | bool] = {}
    """Passed to Spark's reader, for example ``header: true`` for csv; ``images`` takes ``height`` and ``width``."""

    @model_validator(mode="after")
    def _paths_are_for_xc(self) -> Self:
        if isinstance(self.path, dict) and (self.format != "xc" or not self.path):
            raise ValueError("a path for each split is for the format `xc`, and names at least one split")
        return self


class Stage(Section):
    """One step of preprocessing, fitted on the training split only."""

    kind: Literal["standardise", "impute", "index", "hash_text", "count_text"]
    """``index`` numbers the categories. ``hash_text`` and ``count_text`` cut texts into lower-case words, count them
    (by their hash, or those of a vocabulary) and weight them by inverse document frequency."""
    columns: Annotated[list[str], Field(min_length=1)]
    """The raw columns it applies to; each is replaced by its result."""
    strategy: Literal["mean", "median", "mode"] = "mean"
    """``impute``: what stands in for a missing value."""
    dimensions: Positive = 1024
    """``hash_text``: the width of the hashed vector."""
    vocabulary: Positive = 1 << 18
    """``count_text``: how many words are kept at most: those in most rows of the training split."""
    minimum_documents: Positive = 1
    """Text: words in fewer training rows than this count for nothing."""
    bigrams: bool = False
    """Text: whether pairs of neighbouring words are counted too; a text's beginning is its first word's neighbour."""
    sublinear: bool = False
    """Text: whether a word that occurs n times counts 1 + ln n instead of n (Manning, Raghavan, Schuetze, 2008,
    Introduction to Information Retrieval, section 6.4.1)."""


class Split(Section):
    """Which rows are for training, validation and testing. Every row starts in ``train``."""

    column: str | None = None
    """A raw column that names each row's split; its values become the names of the splits."""
    fractions: dict[str, Fraction] = Field(
        default_factory=lambda chosen: {} if chosen.get("column") else {"validation": 0.1, "test": 0.1}
    )
    """Shares of the training rows that move to other splits, chosen by a hash of the row and the seed; by default a
    tenth for ``validation`` and for ``test``, and none when there is a ``column``."""

    @model_validator(mode="after")
    def _leave_training_rows(self) -> Self:
        if sum(self.fractions.values()) >= 1:
            raise ValueError(
                f"the fractions add up to {sum(self.fractions.values()):g}; they must leave rows for training"
            )
        return self


class Prepare(Section):
    """How a raw table becomes a dataset."""

    output: Storage
    """The dataset's folder: a path or a URI on storage that driver and executors both reach."""
    source: Source | None = None
    """The raw rows; not needed when a DataFrame is handed in."""
    label: str = "label"
    """The column to predict: whole numbers or strings, each distinct value one class; of ``sparse`` data also arrays of
    them, for rows with several labels."""
    image: str | None = None
    """The column of images. Kept as uint8; scaling happens inside the network."""
    image_shape: Annotated[list[Positive], Field(min_length=2, max_length=3)] | None = None
    """Height, width and (if more than one) channels; ``idx`` and ``images`` sources know it themselves."""
    features: list[str] | None = None
    """The columns to learn from when there is no image; by default every column but the label and the split."""
    stages: list[Stage] = []
    """Preprocessing, in order; the results are assembled into one vector of float32."""
    sparse: bool = False
    """Whether rows keep only what is not zero: for long vectors, very many classes, or several labels a row. Labels
    that only other splits than ``train`` have are then kept as unseen instead of refused."""
    unit_norm: bool | None = None
    """Whether each row is divided by its Euclidean norm; by default when ``sparse``."""
    on_bad_rows: Literal["error", "skip"] = "error"
    """What happens when rows cannot be used, for example without a label or an input: either way they are counted, and
    the first ones named where the source knows their place."""
    split: Split = Split()
    seed: int = 0
    """Decides splits and the order of rows."""
    num_ranks: Positive = 2
    """The number of row groups in each split is a multiple of this."""
    rows_per_group: Positive = 8192
    """About how many rows a row group holds; fewer when their inputs would take more than 256 MiB."""

    @model_validator(mode="after")
    def _image_or_features(self) -> Self:
        if self.image and self.features:
            raise ValueError("give either `image` or `features`, not both")
        if self.image and self.stages:
            raise ValueError("`stages` apply to `features`; an `image` is scaled inside the network")
        if self.image and (self.sparse or self.unit_norm):
            raise ValueError("`sparse` and `unit_norm` are for `features`, not for an `image`")
        return self


class Recipe(Section):
    """How the weights are found."""

    epochs: Positive = 1
    batch_size: Positive = 64
    """Rows per rank and step, before accumulation."""
    accumulation: Positive = 1
    """Batches whose gradients are added up before one optimizer step."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.001
    """For one rank without accumulation; see ``scaling``."""
    scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the learning rate grows with ranks x accumulation. ``linear`` is Goyal et al. (2017), arXiv 1706.02677."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """The rate climbs in equal steps from the unscaled to the scaled one; with ``scaling: none``, from zero."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "cosine"
    """What the rate does after warm-up."""
    milestones: list[Fraction] = [0.5, 0.75]
    """``step``: the parts of training after which the rate is divided by ten."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Not applied to biases and normalisation weights (one-dimensional parameters)."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """The largest norm of the averaged gradient."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """``bfloat16`` and ``float16`` compute under autocast with float32 weights; ``float16`` needs a GPU."""
    seed: int = 0
    """Decides initial weights, dropout and the order of rows."""


class Train(Recipe):
    """How a dataset becomes a registered model: what to train, and the recipe."""

    dataset: Storage | None = None
    """The prepared dataset's folder; by default ``prepare.output`` of the same file."""
    run_dir: Storage = "output/runs"
    """Where runs keep their checkpoints: storage that driver and executors both reach."""
    model: str | Callable[..., Any] = "mlp"
    """A name from ``sparkdl.models``, an import path ``package.module:name``, or a callable that returns a module."""
    model_options: dict[str, Any] = {}
    """Keyword arguments for the model."""
    loss: str | Callable[..., Any] = "cross_entropy"
    """A name from ``torch.nn.functional``, an import path, or a callable of (outputs, labels): the batch mean."""
    optimizer: str | Callable[..., Any] = "adamw"
    """``sgd``, ``adam``, ``adamw``, an import path, or a callable of (parameter groups, lr=...)."""
    optimizer_options: dict[str, Any] = {}
    """Keyword arguments for the optimizer, for example ``momentum``."""
    strategy: Literal["allreduce"] = "allreduce"
    """How replicas agree: synchronous data parallelism by ring all-reduce."""
    start_from: str | None = None
    """A registered model (``models:/name@alias``) whose weights training starts from."""
    best_by: Literal["loss", "accuracy"] = "accuracy"
    """The validation metric that decides which checkpoint is the best one."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] | None = 5.0
    """How often a checkpoint is written while an epoch lasts; there is one after each epoch in any case."""
    checkpoint_steps: Positive | None = None
    """The same, counted in optimizer steps."""
    keep_last: Positive = 2
    """How many checkpoints are kept: when the newest is damaged, the one before it is used."""
    keep_best: Positive = 1
    """The weights of how many epochs that were the best so far are kept."""
    on_resize: Literal["keep_batch", "scale_rate"] = "keep_batch"
    """When there are fewer or more ranks than asked for: ``keep_batch`` keeps the rows of a step (each rank takes more,
    or accumulates), ``scale_rate`` keeps each rank's rows and changes the learning rate in proportion."""
    resume: str | None = None
    """Continue a run from its checkpoints: its id, or ``auto`` for the newest unfinished one with the same dataset and
    recipe (a new run when there is none)."""


class Extreme(Section):
    """How the meta-models of extreme classification are trained (MACH: arXiv 1810.04254)."""

    dataset: Storage | None = None
    """The prepared sparse dataset's folder; by default ``prepare.output`` of the same file."""
    run_dir: Storage = "output/extreme"
    """Where finished repetitions are kept: storage that driver and executors both reach. A job that is started again
    with the same settings goes on with the missing ones."""
    buckets: Annotated[int, Field(ge=2)] = 512
    """What the classes of a repetition are hashed to."""
    repetitions: Positive = 16
    """How many meta-models, each with a hash of its own."""
    repetitions_per_task: Positive = 8
    """How many of them share a task, and with it each batch and each matrix product."""
    minimum_repetitions: Positive | None = None
    """With how many of them the ensemble is finished if Spark gives up on tasks; by default, it takes all of them."""
    hidden: list[Positive] = [128]
    """The widths of the hidden layers; an empty list is a linear model."""
    loss: Literal["softmax", "binary"] = "softmax"
    """With several labels a row, ``softmax`` shares one distribution among their buckets, ``binary`` asks each one."""
    epochs: Positive = 3
    batch_size: Positive = 256
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    """Climbs to this in the first twentieth of training, then falls to zero in a straight line."""
    hash_family: Literal["universal", "murmur3", "identity"] = "universal"
    """``identity`` hashes nothing: with a bucket for each class, a single repetition is an ordinary classifier."""
    seed: int = 0
    """Decides hashes, initial weights and the order of rows."""

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.minimum_repetitions is not None and self.minimum_repetitions > self.repetitions:
            raise ValueError(
                f"minimum_repetitions is {self.minimum_repetitions}, more than the {self.repetitions} repetitions"
            )
        return self


class Score(Section):
    """How a registered model becomes a column."""

    model: str | None = None
    """A model URI; by default the one that ``tracking`` registers."""
    source: Source | None = None
    """The raw rows; by default ``prepare.source``."""
    split: str | None = None
    """Scores only the rows that ``prepare`` puts into this split."""
    where: str | None = None
    """A SQL condition that picks the rows to score, for example ``split = 'test'``."""
    output: Storage | None = None
    """Where the Parquet files with predictions go."""
    top_k: Positive = 5
    """How many classes are listed in the column ``top_k``."""
    batch_size: Positive = 256
    """Rows per forward pass. What it computes should fit into a core's cache: more rows are often slower."""
    on_error: Annotated[Literal["fail", "null"], BeforeValidator(lambda value: value or "null")] = "fail"
    """What a row that cannot be scored does (an image that cannot be decoded, a vector of another width, NaN): ``fail``
    ends the job with an error that names the row; with ``null`` it has no prediction, the column ``error`` says why,
    and all other rows are scored."""
    key: str | None = None
    """The column that names a row in such an error."""
    trusted_stages: list[str] = []
    """Classes of your own (``package.module.Class``) that a model's preprocessing may consist of, beside those of Spark
    and sparkdl: loading a stage runs its class."""


class RankRange(Section):
    """How many ranks are acceptable; as many of them are started as there are slots."""

    min: Positive = 1
    max: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}; min must not be larger")
        return self


class Cluster(Section):
    """Where it runs."""

    num_ranks: Positive | RankRange = 2
    """How many training processes; each takes one task slot. ``{min: 1, max: 8}`` goes on with fewer when slots are
    lost, and with more when they come back."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How many failures in a row, without a new checkpoint between them, are answered by another attempt."""
    restart_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The pause before the first of them; it doubles each time, up to a minute."""
    start_timeout: Annotated[float, Field(gt=0)] = 180.0
    """Seconds from a stage's start to a rank's first word: Spark starts Python, which loads PyTorch."""
    silence_timeout: Annotated[float, Field(gt=0)] = 20.0
    """Seconds without a sign of life after which a rank's process is taken for stopped or lost."""
    stall_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds without a finished batch after which a rank is taken for stuck: longer than the longest of them."""
    embedded_slots: Positive = 2
    """Slots of the Spark that is started in this process tree when none is running."""
    slot_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds to wait for enough slots on a cluster that is still starting executors."""
    options: dict[str, str | int | float | bool] = {}
    """Spark settings for the embedded session, for example ``spark.driver.memory: 4g``."""

    @property
    def ranks(self) -> RankRange:
        """The least and the largest number of ranks."""
        asked = self.num_ranks
        return asked if isinstance(asked, RankRange) else RankRange(min=asked, max=asked)


class Gate(Section):
    """What a new version must reach before the alias moves to it."""

    metric: str = "test_accuracy"
    minimum: float | None = None
    """For a metric that is better when larger: the least acceptable value."""
    maximum: float | None = None
    """For a metric that is better when smaller: the largest acceptable value."""
    better_than_current: bool = True
    """Whether the version must also be no worse than the one the alias points to now."""


class Tracking(Section):
    """Where MLflow keeps what happened."""

    uri: Annotated[str | None, Field(repr=False)] = None
    """A tracking URI; by default ``MLFLOW_TRACKING_URI``, else SQLite in ``output/mlflow.db``."""
    experiment: str = "sparkdl"
    """The experiment's name."""
    run_name: str | None = None
    offline: bool = False
    """Start also when the store does not answer: everything is kept on disk, and ``sparkdl sync`` delivers it."""
    spool: Folder = "output/tracking"
    """Where records are kept until the store has them; a folder that outlives this machine loses none with it."""
    register_as: str | None = None
    """The registered model's name; without one, nothing is registered."""
    alias: str = "candidate"
    """The alias that moves to the new version when the gate allows it."""
    gate: Gate = Gate()


class Settings(Section):
    """A whole pipeline."""

    prepare: Prepare | None = None
    train: Train = Train()
    extreme: Extreme = Extreme()
    score: Score = Score()
    cluster: Cluster = Cluster()
    tracking: Tracking = Tracking()

    def require(self, key: str) -> Any:
        """The value of a key that a job cannot do without, for example ``prepare.source``.

        Raises :class:`ConfigError` if the file does not set it.
        """
        value: Any = self
        for part in key.split("."):
            value = getattr(value, part)
            if value is None:
                raise ConfigError(f"the configuration does not set {key!r}, which this job needs")
        return value
