"""Adapters by ``peft``: a few added weights are trained, the network's own are frozen. Runs on driver and ranks.

The state of a network with adapters (:func:`sparkdl.models.full_state`) has the buffers and the trained parameters, and
checkpoints have the same. Ranks exchange the trained parameters. A resumed run gets all other weights from
``train.model``, which builds them again.
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
"""The prefix of parameter names in files of ``peft``."""
_ONLY = "default"
"""The name that ``peft`` gives a single set of adapters."""


def with_adapters(network: nn.Module, options: LoraOptions) -> nn.Module:
    """The same network with adapters in its layers; only these and the layers of ``options.whole`` are trained.

    Raises :class:`ConfigError` if the network lacks a layer of ``options.whole``, or no layer can have adapters.
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
    by_name = network.named_parameters(remove_duplicate=False)  # a state_dict has tied weights under all their names
    leave_out_of_state(network, [name for name, each in by_name if not each.requires_grad])
    return network


def merge_adapters(network: nn.Module) -> nn.Module:
    """The network without adapters: their products are added to its own weights, and it has its original layers."""
    for name, layer in _adapted(network):
        layer.merge()
        owner, _, key = name.rpartition(".")
        setattr(network.get_submodule(owner), key, layer.get_base_layer())
    leave_out_of_state(network, [])
    return network


def adapters_beside(network: nn.Module, settings: Train) -> BesideBase | None:
    """The adapters of a network before they are merged; None if the merged network is registered.

    Raises :class:`ConfigError` if the base weights are not in a folder, and :class:`ModelError` for adapters that are
    not matrices.
    """
    if settings.adapters is None or settings.adapters.registered == "merged":
        return None
    place = settings.model_options.get("pretrained")
    if not place:
        raise ConfigError(
            "train.adapters.registered: adapters need base weights in a folder, but train.model_options has no"
            " `pretrained`; set it to the folder, or leave registered out"
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
    """Write the configuration file that ``peft`` reads along with the adapters."""
    options = settings.adapters
    assert options is not None
    config = _config(options)
    config.modules_to_save = options.whole or None
    config.base_model_name_or_path = str(settings.model_options["pretrained"])
    config.inference_mode = True
    config.save_pretrained(folder)


def _config(options: LoraOptions) -> Any:
    """The options as ``peft``'s configuration."""
    return require("peft", extra="finetuning").LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=options.targets or None,
        exclude_modules=options.whole or None,
    )


def _adapted(network: nn.Module) -> list[tuple[str, Any]]:
    """The names and layers of all layers that have adapters."""
    tuners: Any = require("peft.tuners.tuners_utils", extra="finetuning")
    return [(name, each) for name, each in network.named_modules() if isinstance(each, tuners.BaseTunerLayer)]


def _matrices(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices A and B of a layer's adapter."""
    if hasattr(layer, "lora_embedding_A") and layer.lora_embedding_A:
        return layer.lora_embedding_A[_ONLY], layer.lora_embedding_B[_ONLY]
    return layer.lora_A[_ONLY].weight, layer.lora_B[_ONLY].weight


def _is_called(name: str, lasts: list[str]) -> bool:
    return any(name == last or name.endswith(f".{last}") for last in lasts)


def _layers(network: nn.Module) -> str:
    """The last parts of the names of layers with weights: equal blocks share them, so that the list is short."""
    found = (name.rpartition(".")[2] for name, each in network.named_modules() if list(each.parameters(recurse=False)))
    return ", ".join(dict.fromkeys(found))
