"""Adapters: a few weights that are trained beside those of a network, by ``peft``. Runs on driver and ranks.

A network with adapters has in its state (:func:`sparkdl.models.full_state`) buffers and what is trained. Ranks exchange
the latter, and checkpoints hold no more. All else is what ``train.model`` builds, and comes from there again.
"""

from typing import Any

from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.extras import require
from sparkdl.models import leave_out_of_state
from sparkdl.settings.adapter_options import LoraOptions

__all__ = ["merge_adapters", "with_adapters"]


def with_adapters(network: nn.Module, options: LoraOptions) -> nn.Module:
    """The same network, with adapters in its layers; nothing else of it but the layers ``whole`` is trained.

    Raises :class:`ConfigError` when there is no such layer, or none that can have adapters.
    """
    peft: Any = require("peft", extra="finetuning")
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=options.targets or None,
        exclude_modules=options.whole or None,
    )
    whole = {name: module for name, module in network.named_modules() if _is_called(name, options.whole)}
    for last in options.whole:
        if not any(_is_called(name, [last]) for name in whole):
            raise ConfigError(f"train.adapters.whole: the network has no layer {last!r}; it has {_layers(network)}")
    try:
        peft.inject_adapter_in_model(config, network)
    except (ValueError, RuntimeError) as error:
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"train.adapters.targets: {told}. The network has {_layers(network)}") from None
    for module in whole.values():
        module.requires_grad_(True)
    leave_out_of_state(network, [name for name, each in network.named_parameters() if not each.requires_grad])
    return network


def merge_adapters(network: nn.Module) -> nn.Module:
    """The network with what its adapters have learned in its own weights, and without adapters: as it was built."""
    tuners: Any = require("peft.tuners.tuners_utils", extra="finetuning")
    for name, layer in list(network.named_modules()):
        if isinstance(layer, tuners.BaseTunerLayer):
            layer.merge()
            owner, _, key = name.rpartition(".")
            setattr(network.get_submodule(owner), key, layer.get_base_layer())
    leave_out_of_state(network, [])
    return network


def _is_called(name: str, lasts: list[str]) -> bool:
    return any(name == last or name.endswith(f".{last}") for last in lasts)


def _layers(network: nn.Module) -> str:
    """The last parts of the names of layers with weights, which are few in a deep network of equal blocks."""
    found = (name.rpartition(".")[2] for name, each in network.named_modules() if list(each.parameters(recurse=False)))
    return ", ".join(dict.fromkeys(found))
