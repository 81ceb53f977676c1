"""Adapters: a few weights that are trained beside those of a network, by ``peft``. Runs on driver and ranks.

A network with adapters has in its state (:func:`sparkdl.models.full_state`) buffers and what is trained. Ranks exchange
the latter, and checkpoints hold no more. All else is what ``train.model`` builds, and comes from there again.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.extras import require
from sparkdl.models import BesideBase, LowRank, leave_out_of_state
from sparkdl.settings import Train
from sparkdl.settings.adapter_options import LoraOptions

__all__ = ["adapters_beside", "merge_adapters", "with_adapters", "write_adapter_config"]

_PEFT = "base_model.model."
"""What the names of a network's parts begin with in files of ``peft``."""
_ONLY = "default"
"""What it calls adapters of which there is one."""


def with_adapters(network: nn.Module, options: LoraOptions) -> nn.Module:
    """The same network, with adapters in its layers; nothing else of it but the layers ``whole`` is trained.

    Raises :class:`ConfigError` when there is no such layer, or none that can have adapters.
    """
    peft: Any = require("peft", extra="finetuning")
    config = _config(options)
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
    by_name = network.named_parameters(remove_duplicate=False)  # a state_dict has tied weights by each of their names
    leave_out_of_state(network, [name for name, each in by_name if not each.requires_grad])
    return network


def merge_adapters(network: nn.Module) -> nn.Module:
    """The network with what its adapters have learned in its own weights, and without adapters: as it was built."""
    for name, layer in _adapted(network):
        layer.merge()
        owner, _, key = name.rpartition(".")
        setattr(network.get_submodule(owner), key, layer.get_base_layer())
    leave_out_of_state(network, [])
    return network


def adapters_beside(network: nn.Module, settings: Train) -> BesideBase | None:
    """What a network with adapters, not yet merged, has learned beside its base; None where all of it is registered.

    Raises :class:`ConfigError` where there is no base that stays, and :class:`ModelError` for adapters that are no
    matrices.
    """
    if settings.adapters is None or settings.adapters.registered == "merged":
        return None
    place = settings.model_options.get("pretrained")
    if not place:
        raise ConfigError(
            "train.adapters.registered: adapters need base weights in a folder, and"
            " train.model_options names no `pretrained`; name a folder, or leave it out"
        )
    adapters: dict[str, torch.Tensor] = {}
    added: dict[str, LowRank] = {}
    for name, layer in _adapted(network):
        first, second = _matrices(layer)
        if first.ndim != 2 or second.ndim != 2:
            raise ModelError(
                f"the adapters of the layer {name!r} are no matrices, as those of convolutions are not; leave out"
                " train.adapters.registered"
            )
        in_table = "embedding_" if hasattr(layer, "lora_embedding_A") and layer.lora_embedding_A else ""
        ending = "" if in_table else ".weight"
        a, b = (f"{_PEFT}{name}.lora_{in_table}{letter}{ending}" for letter in "AB")
        adapters |= {a: first.detach(), b: second.detach()}
        transposed = bool(in_table) or bool(layer.fan_in_fan_out)
        added[f"{name}.weight"] = LowRank(a, b, float(layer.scaling[_ONLY]), transposed)
    whole = {}
    for name, module in network.named_modules():
        if _is_called(name, settings.adapters.whole):
            for key, value in module.state_dict(prefix=f"{name}.").items():
                whole[key], adapters[f"{_PEFT}{key}"] = f"{_PEFT}{key}", value.detach()
    return BesideBase(str(place), adapters, added, whole)


def write_adapter_config(folder: Path, settings: Train) -> None:
    """Write what ``peft`` reads beside the adapters."""
    options = settings.adapters
    assert options is not None
    config = _config(options)
    config.modules_to_save = options.whole or None
    config.base_model_name_or_path = str(settings.model_options["pretrained"])
    config.inference_mode = True
    config.save_pretrained(folder)


def _config(options: LoraOptions) -> Any:
    """As ``peft`` has it."""
    return require("peft", extra="finetuning").LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=options.targets or None,
        exclude_modules=options.whole or None,
    )


def _adapted(network: nn.Module) -> list[tuple[str, Any]]:
    """The layers that have adapters, by their names."""
    tuners: Any = require("peft.tuners.tuners_utils", extra="finetuning")
    return [(name, each) for name, each in network.named_modules() if isinstance(each, tuners.BaseTunerLayer)]


def _matrices(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of a layer."""
    if hasattr(layer, "lora_embedding_A") and layer.lora_embedding_A:
        return layer.lora_embedding_A[_ONLY], layer.lora_embedding_B[_ONLY]
    return layer.lora_A[_ONLY].weight, layer.lora_B[_ONLY].weight


def _is_called(name: str, lasts: list[str]) -> bool:
    return any(name == last or name.endswith(f".{last}") for last in lasts)


def _layers(network: nn.Module) -> str:
    """The last parts of the names of layers with weights, which are few in a deep network of equal blocks."""
    found = (name.rpartition(".")[2] for name, each in network.named_modules() if list(each.parameters(recurse=False)))
    return ", ".join(dict.fromkeys(found))
