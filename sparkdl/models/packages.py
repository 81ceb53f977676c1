"""Makes networks of transformers, timm and torchvision, from a configuration or from a folder.

Nothing is downloaded: a network starts from new weights, or from existing files. Only safetensors files are read, and
no code beside them.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from sparkdl.errors import ModelError

__all__ = ["is_auto_class", "maker_in_package"]

Maker = Callable[[Mapping[str, Any], Mapping[str, Any]], nn.Module]
"""Makes a network from arguments that the dataset offers, and from options."""

log = logging.getLogger(__name__)


def maker_in_package(found: Callable[..., Any], name: str) -> Maker | None:
    """How to call a function or class of one of these packages, whose signatures do not show it; None for others.

    ``name`` is the model's name in messages.
    """
    match (getattr(found, "__module__", None) or "").partition(".")[0]:
        case "transformers" if hasattr(found, "from_pretrained"):
            return lambda offered, options: _of_transformers(found, name, offered, options)
        case "timm" | "torchvision" as package:
            return lambda offered, options: _of_images(found, name, package, offered, options)
        case _:
            return None


def is_auto_class(found: object) -> bool:
    """Whether it is one of transformers' Auto classes, which choose a module class by a configuration."""
    module = sys.modules.get("transformers.models.auto.auto_factory")
    return module is not None and isinstance(found, type) and issubclass(found, module._BaseAutoModelClass)


def _of_transformers(found: Any, name: str, offered: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """A network from ``config``, a configuration's values with ``model_type``, or ``pretrained``, a folder; or both.

    The configuration gets the number of classes as ``num_labels``, and, if it lacks them, ``vocab_size`` and the size
    and channels of images.
    """
    auto: Any = importlib.import_module("transformers").AutoConfig  # imported here, because it takes seconds
    given = dict(options)
    config_values, folder = dict(given.pop("config", None) or {}), given.pop("pretrained", None)
    if given or not (config_values or folder):
        raise ModelError(
            f"the model {name!r} takes the options `config`, a mapping with `model_type`, and `pretrained`, a folder;"
            f" {_named(given)}"
        )
    values = {"use_cache": False, **_sizes(offered)} | config_values
    if "num_classes" in offered:
        values = {"num_labels": offered["num_classes"]} | values
    if folder:
        if not Path(folder, "config.json").is_file():
            raise ModelError(
                f"the model {name!r}: there is no config.json in {folder}; `pretrained` must be a folder that driver"
                " and executors reach, as save_pretrained() makes it; nothing is downloaded"
            )
        known = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        values = {key: value for key, value in values.items() if hasattr(known, key)} | config_values
        for key in _sizes(offered).keys() - config_values.keys():
            values.pop(key, None)  # these sizes follow from the pretrained weights
        network: nn.Module = found.from_pretrained(
            folder,
            config=_changed(known, values),
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
        return network
    if "model_type" not in config_values:
        raise ModelError(f"the model {name!r}: `config` has no `model_type`; set it to the architecture, such as bert")
    kind = config_values.pop("model_type")
    config = auto.for_model(kind)
    unknown = [key for key in config_values if not hasattr(config, key)]
    if unknown:
        raise ModelError(f"the model {name!r}: a configuration of {kind} has no {unknown[0]!r}")
    values = {key: value for key, value in values.items() if hasattr(config, key) and key != "model_type"}
    config = auto.for_model(kind, **values)
    made: nn.Module = found.from_config(config) if is_auto_class(found) else found(config)
    return made.float()


def _changed(config: Any, values: Mapping[str, Any]) -> Any:
    for key, value in values.items():
        setattr(config, key, value)
    return config


def _sizes(offered: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the dataset's images and vocabularies, by their names in configurations."""
    vocabularies = set(offered.get("vocabularies", {}).values())
    sizes: dict[str, Any] = {"vocab_size": vocabularies.pop()} if len(vocabularies) == 1 else {}
    shapes = [offered["input_shape"]] if "input_shape" in offered else list(offered.get("input_shapes", {}).values())
    images = [shape for shape in shapes if len(shape) == 3]
    if len(images) == 1:
        channels, height, width = images[0]
        sizes |= {"num_channels": channels, "image_size": height if height == width else (height, width)}
    return sizes


def _of_images(
    found: Callable[..., Any], name: str, package: str, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    """A network from the package's own arguments, with the number of classes, and for timm the images' channels.

    ``pretrained`` is a safetensors file with weights by name; those whose shapes fit are loaded.
    """
    given = dict(options)
    file = given.pop("pretrained", None)
    if given.get("weights") or (file is not None and not str(file).endswith(".safetensors")):
        raise ModelError(
            f"the model {name!r}: `pretrained` must be a safetensors file that driver and executors reach; nothing is"
            " downloaded, and no other format is read"
        )
    if package == "timm" and ":" in str(given.get("model_name", "")):
        raise ModelError(
            f"the model {name!r}: `model_name` {given['model_name']!r} is an address, but nothing is downloaded; set"
            " the plain name of a network"
        )
    arguments = {"num_classes": offered["num_classes"]}
    if package == "timm" and len(offered.get("input_shape", ())) == 3:
        arguments["in_chans"] = offered["input_shape"][0]
    network: nn.Module = found(**(arguments | given))
    if file:
        _take_fitting(network, file, name)
    return network


def _take_fitting(network: nn.Module, file: str, name: str) -> None:
    """Load the weights of a file into a network, except those of other shapes, as for another number of classes."""
    try:
        theirs = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the model {name!r}: cannot read the weights in {file}: {error}") from None
    ours = network.state_dict()
    fitting = {key: value for key, value in theirs.items() if key in ours and ours[key].shape == value.shape}
    if not fitting:
        raise ModelError(f"the model {name!r}: no weight in {file} fits; the file must be of the same network")
    if left := sorted(ours.keys() - fitting.keys()):
        log.warning("starting from %s; these weights do not fit and are new: %s", file, ", ".join(left))
    network.load_state_dict(fitting, strict=False)


def _named(given: Mapping[str, Any]) -> str:
    return f"it takes no {next(iter(given))!r}" if given else "it was given neither"
