"""The section ``train``: what is trained, and how its weights are found."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sparkdl.settings.adapter_options import Adapters
from sparkdl.settings.gradient_noise import NoiseShape
from sparkdl.settings.pruning_options import MagnitudeOptions, Pruning, StructuredOptions
from sparkdl.settings.section import Fraction, Positive, Section, Seed, Storage, TaskName
from sparkdl.settings.strategies import AllReduceOptions, ISTOptions, Strategies
from sparkdl.settings.target import FigureName, Target
from sparkdl.settings.teacher import Teacher
from sparkdl.settings.train_conflicts import check_conflicts

__all__ = ["Recipe", "Train"]


def _by_label(weights: Any) -> Any:
    """The mapping with labels as the dataset's card spells them: YAML reads some of them as numbers or truth values."""
    if not isinstance(weights, Mapping):
        return weights
    return {str(label).lower() if isinstance(label, bool) else str(label): value for label, value in weights.items()}


OutputName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ClassWeights = Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(_by_label)]


class Recipe(Section):
    """How the weights are found."""

    model_config = ConfigDict(allow_inf_nan=False)

    epochs: Positive = 1
    batch_size: Positive = 64
    """Rows per rank and step, before accumulation; for ranking, groups of rows."""
    accumulation: Positive = 1
    """Batches whose gradients are added up before one optimizer step."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.001
    """For one rank without accumulation; see ``scaling``."""
    scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the learning rate grows with ranks x accumulation. ``linear`` is Goyal et al. (2017), arXiv 1706.02677."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """The rate climbs in equal steps from the unscaled to the scaled one; with ``scaling: none``, from zero."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "cosine"
    """How the rate changes after warm-up."""
    milestones: list[Fraction] = [0.5, 0.75]
    """For ``step``: the fractions of training after which the rate is divided by ten."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Not applied to biases and normalisation weights (one-dimensional parameters)."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """The largest norm of the averaged gradient."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """``bfloat16`` and ``float16`` compute under autocast with float32 weights; ``float16`` needs a GPU."""
    seed: Seed = 0
    """Decides initial weights, dropout and the order of rows."""


class Train(Recipe):
    """How a dataset becomes a registered model: what to train, and the recipe."""

    dataset: Storage | None = None
    """The prepared dataset's folder; by default ``prepare.output`` of the same file. Or the folder of Parquet files or
    of a Delta table: training reads these files in place, as with ``prepare.in_place``. ``prepare`` names the label
    column, and the dataset's card is written to ``run_dir``."""
    run_dir: Storage = "output/runs"
    """Where runs keep their checkpoints: storage that driver and executors both reach."""
    task: TaskName | None = None
    """The task that the dataset must have been prepared for (``prepare.task``); by default any."""
    model: str | Callable[..., Any] = "mlp"
    """A name from ``sparkdl.models``, an import path ``package.module:name``, or a callable that returns a module."""
    model_options: dict[str, Any] = {}
    """Keyword arguments for the model."""
    loss: str | Callable[..., Any] | None = None
    """A name from ``torch.nn.functional``, an import path, or a callable of (logits, labels) that returns the batch
    mean. If its second argument is called ``batch``, it gets all outputs of the network, and the batch with its
    ``inputs``, ``labels`` and ``weights``. By default ``cross_entropy``, for several labels
    ``binary_cross_entropy_with_logits``, for regression ``mse_loss``, for ranking ListNet's
    (``sparkdl.training.tasks.ranking``), and for language modelling the cross entropy of logits (n, length, vocabulary)
    with the next tokens (n, length), which are -100 after the end of a row. If rows or classes have weights, as blocks
    of language modelling do, the loss must take ``reduction="none"``, or be a module of PyTorch."""
    outputs: list[OutputName] = []
    """Outputs of the network that scoring returns as columns beside the predictions, by name: for example ``[logits,
    embedding]``, if the network returns a mapping or an object with both. Each is a number or a vector per row."""
    standardise_labels: bool | None = None
    """For regression: whether the loss gets labels with mean 0 and variance 1, so that one learning rate suits labels
    of any unit, or labels as they are. Figures and predictions have the labels' own unit in any case. By default true
    with ``mse_loss`` and ``l1_loss``, whose optimum does not depend on the unit, and false with any other loss, because
    a loss for counts or intervals needs the labels as they are."""
    class_weights: Literal["balanced"] | ClassWeights | None = None
    """For classification: how much the rows of each class count in the loss. Either a mapping from labels to numbers (1
    for labels that it does not name), of which only the ratios matter, or ``balanced``: n / (k n_c) for n training rows
    of k classes, n_c of them of class c, as with scikit-learn. Weights of rows are multiplied by these numbers. Figures
    other than ``loss`` count all classes alike."""
    compile: bool = False
    """Whether to compile the network with ``torch.compile``: steps become faster, after some seconds or minutes of
    compiling on each rank. Ranks need a C++ compiler, or on a GPU Triton; the driver tests this before ranks start."""
    optimizer: str | Callable[..., Any] = "adamw"
    """``sgd``, ``adam``, ``adamw``, an import path, or a callable of (parameter groups, lr=...). ``sparse_adam`` is
    ``adamw`` for networks with sparse gradients (``torch.nn.Embedding(sparse=True)``): of a table it changes only the
    rows, and their moments, that are in the batch; ``weight_decay`` does not apply to tables. ``sgd`` without
    ``weight_decay`` and ``torch.optim:Adagrad`` take such gradients, too. For other optimizers gradients become dense,
    and the driver warns. With the extra ``optimizers`` also ``lars`` (You et al., 2017, arXiv 1708.03888) and ``lamb``
    (You et al., 2020, arXiv 1904.00962), whose rate in each layer is proportional to the norm of its weights: for large
    batches."""
    optimizer_options: dict[str, Any] = {}
    """Keyword arguments for the optimizer, for example ``momentum``."""
    strategy: Strategies = AllReduceOptions()
    """When and how replicas are synchronised."""
    gradient_noise: NoiseShape | None = None
    """Add noise to the gradient, so that a step over many rows behaves like a step over few; needs ``allreduce``."""
    adapters: Adapters | None = None
    """Freeze the weights that ``model`` builds, and train small adapters: ``{kind: lora, rank: 8, targets: [query,
    value], whole: [classifier]}``. Ranks exchange and checkpoints hold only the adapters. The registered model has them
    merged into its weights, unless ``registered: adapters`` keeps them in files of their own."""
    teacher: Teacher | None = None
    """For classification, with one label per row or several: a registered model. The network learns from its logits
    (distillation) as well as from the labels, for example ``{model: models:/large@production, temperature: 4, weight:
    0.5}``."""
    start_from: str | None = None
    """A registered model (``models:/name@alias``) whose weights training starts from."""
    pruning: Pruning | None = None
    """What to prune: ``{kind: structured, keep: 0.5}`` removes half of the neurons and channels of the model in
    ``start_from``; ``{kind: magnitude, sparsity: 0.8, end_epoch: 5}`` sets single weights to zero, 80% of them."""
    target: Target | None = None
    """End the run when an epoch reaches this figure, for example ``{metric: validation_accuracy, value: 0.9}``."""
    patience: Positive | None = None
    """End the run when the validation figure of ``best_by`` has not improved for this number of epochs."""
    best_by: FigureName | None = None
    """The validation figure that decides which checkpoint is the best one: by default ``accuracy``, for several labels
    ``mean_average_precision``, for regression ``r2``, for ranking ``ndcg_at_10``, for language modelling
    ``perplexity``."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] | None = 5.0
    """Minutes between two checkpoints within an epoch; there is also one after each epoch."""
    checkpoint_steps: Positive | None = None
    """Optimizer steps between two checkpoints within an epoch."""
    keep_last: Positive = 2
    """How many checkpoints are kept: if the newest is damaged, the one before it is used."""
    keep_best: Positive = 1
    """For how many of the best epochs so far the weights are kept."""
    on_resize: Literal["keep_batch", "scale_rate"] = "keep_batch"
    """If there are fewer or more ranks than asked for: ``keep_batch`` keeps the number of rows per step (each rank
    takes more, or accumulates gradients); ``scale_rate`` keeps each rank's rows and changes the learning rate in
    proportion."""
    resume: str | None = None
    """Continue a run from its checkpoints: its id, or ``auto`` for the newest unfinished one with the same dataset and
    recipe (a new run when there is none)."""

    @property
    def narrower(self) -> StructuredOptions | None:
        """How neurons and channels of ``model`` are removed; None without structured pruning."""
        return self.pruning if isinstance(self.pruning, StructuredOptions) else None

    @property
    def sparser(self) -> MagnitudeOptions | None:
        """How weights become zero; None without pruning by magnitude."""
        return self.pruning if isinstance(self.pruning, MagnitudeOptions) else None

    @property
    def in_parts(self) -> str | None:
        """The key that gives each rank a part of the network; None if each rank has the whole."""
        if isinstance(self.strategy, ISTOptions) and self.strategy.sharded:
            return "strategy.sharded"
        return "strategy.shard" if isinstance(self.strategy, AllReduceOptions) and self.strategy.shard else None

    @model_validator(mode="after")
    def _without_conflicts(self) -> Self:
        check_conflicts(self)
        return self
