"""Settings of ``train`` that exclude each other."""

from typing import TYPE_CHECKING

from sparkdl.settings.strategies import (
    AllReduceOptions,
    AsynchronousOptions,
    DownpourOptions,
    HogwildOptions,
    ISTOptions,
    PostLocalSGDOptions,
    ResISTOptions,
    RoundsOptions,
    SandblasterOptions,
)

if TYPE_CHECKING:
    from sparkdl.settings.train import Train

__all__ = ["check_conflicts"]

_PREDICTION_COLUMNS = (
    "prediction",
    "probability",
    "top_k",
    "contributions",
    "error",
    "log_likelihood",
    "num_tokens",
    "perplexity",
)
"""The columns that scoring adds by itself."""
_WITH_MOMENTUM = ("adam", "adamw", "sparse_adam", "lars", "lamb")
"""The optimizers that have momentum by default."""


def check_conflicts(train: "Train") -> None:
    """Raises ValueError, which names both keys and says which to change."""
    _check_epochs(train)
    _check_outputs(train)
    _check_adapters(train)
    _check_pruning(train)
    _check_compile(train)
    _check_gradient_noise(train)
    _check_parts(train)
    _check_hogwild(train)
    _check_asynchronous(train)
    _check_sandblaster(train)
    _check_compression(train)


def _check_epochs(train: "Train") -> None:
    if isinstance(train.strategy, PostLocalSGDOptions) and train.strategy.after_epochs >= train.epochs:
        raise ValueError(
            f"strategy.after_epochs is {train.strategy.after_epochs} and epochs is {train.epochs}: ranks would never"
            " step alone; lower it, or set strategy to allreduce"
        )
    if isinstance(train.strategy, RoundsOptions):
        together = train.strategy.allreduce_first + train.strategy.allreduce_last
        if together >= train.epochs:
            raise ValueError(
                f"strategy.allreduce_first and allreduce_last are {together} epochs of {train.epochs}: ranks would"
                " never train sub-networks; lower them, or set strategy to allreduce"
            )


def _check_outputs(train: "Train") -> None:
    if taken := [name for name in train.outputs if name in _PREDICTION_COLUMNS]:
        raise ValueError(f"outputs has {taken[0]!r}, which is the name of a column of predictions; rename the output")
    if len(set(train.outputs)) < len(train.outputs):
        raise ValueError("outputs names an output twice")


def _check_adapters(train: "Train") -> None:
    if train.adapters and train.start_from:
        raise ValueError(
            "adapters are added to the weights that model and model_options build in every attempt of a run, but"
            " start_from would replace these weights; leave one of them out"
        )
    if train.adapters and isinstance(train.strategy, ISTOptions | ResISTOptions):
        raise ValueError(
            f"adapters need the whole network on each rank, but strategy {train.strategy.model_dump()['kind']}"
            " assigns neurons or blocks to ranks; set strategy to allreduce"
        )


def _check_pruning(train: "Train") -> None:
    if train.narrower and train.start_from is None:
        raise ValueError(
            "pruning structured removes neurons with small weights from a trained network; set start_from"
            " to a registered model that the same model and model_options have built"
        )
    kind = train.strategy.model_dump()["kind"]
    if train.narrower and isinstance(train.strategy, ISTOptions | ResISTOptions):
        raise ValueError(
            f"strategy {kind} cuts the network in its own way, which does not fit pruning; set strategy to allreduce"
        )
    if train.sparser is None:
        return
    if not isinstance(train.strategy, AllReduceOptions):
        raise ValueError(
            f"pruning magnitude needs replicas that are equal after each step, but with strategy {kind} each would"
            " choose other weights; set strategy to allreduce"
        )
    if train.adapters:
        raise ValueError(
            "pruning magnitude would prune the adapters instead of the network's weights; leave one of them out"
        )
    if train.sparser.end_epoch >= train.epochs:
        raise ValueError(
            f"pruning.end_epoch is {train.sparser.end_epoch} and epochs is {train.epochs}: the remaining weights"
            " would not be trained afterwards; lower it"
        )


def _check_compile(train: "Train") -> None:
    if train.compile and isinstance(train.strategy, ISTOptions | ResISTOptions | AsynchronousOptions):
        raise ValueError(
            f"compile needs synchronous ranks and layers that keep their sizes, which strategy"
            f" {train.strategy.model_dump()['kind']} does not have; leave compile out, or set strategy to allreduce"
        )


def _check_gradient_noise(train: "Train") -> None:
    if train.gradient_noise is None:
        return
    if not isinstance(train.strategy, AllReduceOptions):
        kind = train.strategy.model_dump()["kind"]
        raise ValueError(
            "gradient_noise adds the noise that the mean gradient of all ranks lacks; with strategy"
            f" {kind}, ranks use other gradients, which have more noise anyway; set strategy to allreduce"
        )
    if train.strategy.compression:
        raise ValueError(
            "gradient_noise has the right strength only without compression; set strategy.compression to null"
        )
    if train.strategy.measure_noise:
        raise ValueError("strategy.measure_noise would also measure the noise of gradient_noise; leave one of them out")


def _check_parts(train: "Train") -> None:
    key = train.in_parts
    if key is None:
        return
    off = f"set {key} to {'false' if key == 'strategy.sharded' else 'null'}"
    if train.start_from:
        raise ValueError(
            f"start_from needs a rank that has the whole network, but with {key} none has; leave it out, or {off}"
        )
    if train.outputs:
        raise ValueError(
            f"outputs need a rank that has the whole network, but with {key} none has; leave them out, or {off}"
        )
    if train.precision == "float16":
        raise ValueError(f"{key} computes in bfloat16 or float32; set precision to one of them")
    if key == "strategy.shard":
        _check_shards(train, off)


def _check_shards(train: "Train", off: str) -> None:
    whole = {
        "adapters": "adapters are for frozen weights, but shards are of trained weights",
        "pruning": "pruning needs the weights of the whole network, of which a rank only has a shard",
        "gradient_noise": "gradient_noise needs the gradients of the whole network, of which a rank only has a shard",
        "compile": "compile needs weights that stay in place, but shards are gathered layer by layer",
    }
    for name, reason in whole.items():
        if getattr(train, name):
            raise ValueError(f"{reason}; leave {name} out, or {off}")


def _check_hogwild(train: "Train") -> None:
    plain = train.optimizer == "sgd" and not train.optimizer_options.get("momentum")
    if isinstance(train.strategy, HogwildOptions) and not plain:
        raise ValueError(
            "with strategy hogwild, ranks share only weights, so the moments of a rank's optimizer would ignore the"
            " steps of other ranks; set optimizer to sgd without momentum"
        )


def _check_asynchronous(train: "Train") -> None:
    if not isinstance(train.strategy, AsynchronousOptions):
        return
    kind = train.strategy.model_dump()["kind"]
    if train.precision == "float16":
        raise ValueError(
            f"strategy {kind}: workers do not agree on the scale that float16 needs; set precision to bfloat16 or"
            " float32"
        )
    given = train.model_fields_set & {"optimizer", "optimizer_options"}
    if isinstance(train.strategy, DownpourOptions) and given and "rule" not in train.strategy.model_fields_set:
        raise ValueError(
            f"strategy {kind}: servers step by strategy.rule, not by {train.optimizer}; set strategy to {{kind:"
            " downpour, rule: adagrad} (or sgd, or dynsgd), or leave optimizer out"
        )


def _check_sandblaster(train: "Train") -> None:
    if isinstance(train.strategy, SandblasterOptions) and (train.optimizer != "adamw" or train.clip_norm is not None):
        raise ValueError(
            "strategy sandblaster is L-BFGS, which chooses direction and step size itself; leave optimizer and"
            " clip_norm out, or set strategy to downpour"
        )


def _check_compression(train: "Train") -> None:
    chosen = train.strategy.compression if isinstance(train.strategy, AllReduceOptions) else None
    if not chosen:
        return
    kind = f"strategy.compression {chosen.model_dump()['kind']}"
    if chosen.keeps_unsent and train.precision == "float16":
        raise ValueError(
            f"{kind} keeps unsent values, whose scale would differ later with precision float16; set"
            " precision to bfloat16 or float32"
        )
    if chosen.delays and (train.optimizer in _WITH_MOMENTUM or train.optimizer_options.get("momentum")):
        raise ValueError(
            f"{kind} sends most of a gradient late, so an optimizer's momentum would apply it again; set optimizer"
            " to sgd without momentum: the compression has its own"
        )
