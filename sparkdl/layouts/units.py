"""The units of a network whose weights are gathered together, and the networks that cannot be sharded."""

from collections import defaultdict

import torch
from packaging.version import Version
from torch import nn

from sparkdl.errors import ConfigError, ModelError

__all__ = ["check_may_be_sharded", "units_of"]

CONTAINERS = nn.Sequential, nn.ModuleList, nn.ModuleDict
"""Modules whose children are called individually."""
OLDEST = Version("2.13")
"""The oldest PyTorch whose ``fully_shard`` sets gradients of weights that a rank did not use to zero."""


def units_of(model: nn.Module) -> list[nn.Module]:
    """The layers and blocks whose weights are gathered at a time, inner ones first: the children of containers.

    A module that shares a weight with a layer elsewhere is no unit, and is gathered with the module that has both.
    """
    homes = defaultdict(set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            homes[id(parameter)].add(module)
    units = []
    for container in model.modules():
        for child in container.children() if isinstance(container, CONTAINERS) else ():
            inside = set(child.modules())
            weights = list(child.parameters())
            if weights and not isinstance(child, CONTAINERS) and all(homes[id(each)] <= inside for each in weights):
                units.append(child)
    return list(dict.fromkeys(reversed(units)))


def check_may_be_sharded(model: nn.Module) -> None:
    """Raise an error for a network that cannot be sharded. Runs on the driver.

    It is a :class:`ModelError` where weights cannot be cut into ranges of rows, and a :class:`ConfigError` where
    PyTorch is too old.
    """
    if Version(torch.__version__) < OLDEST:
        raise ConfigError(
            f"train.strategy.shard takes PyTorch {OLDEST} or later, and {torch.__version__} is installed; upgrade it,"
            " or set shard to null"
        )
    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise ModelError(f"train.strategy.shard: the weight {name!r} is a single number; make it of shape (1,)")
        if not parameter.is_contiguous():
            raise ModelError(f"train.strategy.shard: the weight {name!r} is not contiguous; make it so (.contiguous())")
    sparse = [name for name, each in model.named_modules() if getattr(each, "sparse", False)]
    if sparse:
        raise ModelError(
            f"train.strategy.shard: the gradients of {sparse[0]!r} are sparse, and sharded sums are dense; set its"
            " `sparse` to false, or shard to null"
        )
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if len(kinds) > 1:
        raise ModelError(
            f"train.strategy.shard: the weights are of {' and '.join(sorted(map(str, kinds)))}, and gradients travel"
            " in messages of one type; give all weights one, or set shard to null"
        )
