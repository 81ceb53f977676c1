"""Optimizer, learning rate and precision, built from the recipe in the settings.

The learning rate follows from the settings and the step, so that a resumed run needs no state of a scheduler.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from sparkdl.config import import_object, makes
from sparkdl.errors import ConfigError
from sparkdl.extras import require
from sparkdl.settings import Recipe, Train
from sparkdl.training.recipes.sparse_adam import SparseAdam

__all__ = ["autocast", "build_optimizer", "rate_at", "takes_gradients"]


def _of_extra(name: str, preset: dict[str, Any], groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """An optimizer of the package pytorch_optimizer.

    Raises :class:`ConfigError` when the package is not installed, and ``TypeError`` for an unknown option, which the
    package itself would ignore.
    """
    create = getattr(require("pytorch_optimizer", extra="optimizers"), name)
    known = [key for key in inspect.signature(create).parameters if key not in ("params", "kwargs")]
    if unknown := options.keys() - set(known):
        raise TypeError(f"{name} has no option {sorted(unknown)[0]!r}; its options are {', '.join(known)}")
    optimizer: torch.optim.Optimizer = create(groups, **preset | options)
    return optimizer


AS_IN_THE_PAPER = {"adam_debias": True, "weight_decouple": False}
"""Options that make LAMB as published. With the package's defaults, the first steps are up to ten times the rate, and
the norm of a layer leaves weight decay out."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,  # not fused, because fused SGD takes no sparse gradients
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sparse_adam": SparseAdam,
    "lars": partial(_of_extra, "LARS", {}),
    "lamb": partial(_of_extra, "Lamb", AS_IN_THE_PAPER),
}
"""The names that ``train.optimizer`` knows. A fused optimizer reads memory once, others several times."""
STEP_DECAY = 0.1  # the factor at each milestone, as in He et al. (2016) and Goyal et al. (2017)


def rate_at(recipe: Recipe, step: float, *, steps_per_epoch: int, size: int) -> float:
    """The learning rate of one optimizer step. Steps count from 0 over the whole run, in steps of the recipe's size.

    Warm-up climbs linearly to the scaled rate (Goyal et al., 2017, section 2.2); the schedule then runs over the
    remaining steps.
    """
    replicas = size * recipe.accumulation
    peak = recipe.learning_rate * {"none": 1.0, "sqrt": math.sqrt(replicas), "linear": replicas}[recipe.scaling]
    total = recipe.epochs * steps_per_epoch
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if step < warmup:
        start = 0.0 if recipe.scaling == "none" else recipe.learning_rate
        return start + (peak - start) * min(1.0, (step + 1) / warmup)
    progress = (step - warmup) / max(1, total - warmup)
    match recipe.schedule:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return peak * (1 - progress)
        case "step":
            return peak * STEP_DECAY ** sum(step >= milestone * total for milestone in recipe.milestones)
        case _:
            return peak


def build_optimizer(settings: Train, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's trained parameters; weight decay leaves out biases and normalisation weights.

    Raises :class:`ConfigError` for an unknown name, or options that the optimizer does not take.
    """
    create = OPTIMIZERS.get(settings.optimizer) if isinstance(settings.optimizer, str) else settings.optimizer
    if create is None:
        create = import_object(str(settings.optimizer), key="train.optimizer", names=OPTIMIZERS)
        if not makes(create, torch.optim.Optimizer):
            raise ConfigError(
                f"train.optimizer: {settings.optimizer!r} is neither a torch.optim.Optimizer nor a function that is"
                " annotated to return one; pass any other callable from Python"
            )
    if "weight_decay" in settings.optimizer_options:
        raise ConfigError(
            "set train.weight_decay instead of weight_decay in train.optimizer_options: it leaves biases out"
        )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    try:
        optimizer: torch.optim.Optimizer = create(
            [group for group in groups if group["params"]], lr=settings.learning_rate, **settings.optimizer_options
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"train.optimizer_options do not fit {settings.optimizer!r}: {error}") from None
    return optimizer


def takes_gradients(settings: Train, *, sparse: bool, device: torch.device | str = "cpu") -> bool:
    """Whether the optimizer can step on sparse gradients, or on dense ones; tried on an embedding of two vectors."""
    table = nn.ParameterList([nn.Parameter(torch.zeros(2, 2, device=device))])
    optimizer = build_optimizer(settings, table)
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        for _ in range(2):
            nn.functional.embedding(rows, table[0], sparse=sparse).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    except Exception:  # whatever an optimizer raises
        return False
    return True


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which forward passes compute in the recipe's precision.

    Raises :class:`ConfigError` for float16 without a GPU, where gradients underflow.
    """
    if recipe.precision == "float16" and device.type != "cuda":
        raise ConfigError("train.precision 'float16' needs a GPU; on CPU use 'bfloat16' or 'float32'")
    dtype = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[recipe.precision]
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
