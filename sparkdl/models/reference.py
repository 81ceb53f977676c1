"""A network that cannot be exported: its file contains weights, and the import path of the code that builds it.

Reading such a file runs that code, so this is only done for modules that the reader trusts.
"""

import importlib.metadata
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models.build_named import build_by
from sparkdl.models.full_state import full_state, load_full_state
from sparkdl.models.user_network import import_model, name_of

__all__ = ["REFERENCE", "Reference", "rebuild", "refer", "require_trust", "write_reference"]

REFERENCE = 3
"""The version of files of networks that are built by their own code."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reference:
    """How a network is built."""

    model: str
    """An import path, ``package.module:name``."""
    arguments: dict[str, Any]
    """The arguments of :func:`sparkdl.models.build_by`, as JSON."""
    packages: dict[str, str]
    """The versions of PyTorch and of the model's package, if it is installed."""

    @property
    def module(self) -> str:
        """The module that is imported."""
        return self.model.partition(":")[0]

    @property
    def versions(self) -> str:
        """The packages with which it was trained, in words."""
        return ", ".join(f"{name} {version}" for name, version in self.packages.items())


def refer(model: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Reference:
    """How to build a network from these arguments of :func:`sparkdl.models.build_by`. Runs on the driver.

    Raises :class:`ModelError` for code that other processes could not import by name, and for options that JSON cannot
    hold.
    """
    name = (
        model if isinstance(model, str) else f"{getattr(model, '__module__', '')}:{getattr(model, '__qualname__', '')}"
    )
    module = name.partition(":")[0]
    if isinstance(model, nn.Module) or module in ("", "__main__") or "<" in name:
        raise ModelError(
            f"{name_of(model)!r} has no name by which another process could import it; put it into a module, and set"
            " train.model to package.module:name"
        )
    if not isinstance(model, str) and import_model(name) is not model:
        raise ModelError(f"{name!r} is not the same as {name_of(model)!r}; set train.model to its import path")
    try:
        plain = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"train.model_options of {name!r} are stored as JSON, which has only numbers, texts, lists and mappings:"
            f" {error}"
        ) from None
    return Reference(name, plain, _versions(module))


def write_reference(network: nn.Module, path: str | Path, reference: Reference) -> Path:
    """Write a network's weights, and how to build it. Runs on the driver."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in full_state(network).items()}
    save_file(state, path, metadata={"sparkdl": json.dumps({"version": REFERENCE, **asdict(reference)})})
    return Path(path)


def rebuild(found: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], path: str | Path) -> nn.Module:
    """Build the network of a file whose module is trusted, in evaluation mode, by running its code. Runs anywhere.

    Raises :class:`ModelError` if the module is missing, and if the weights do not fit the network that it builds.
    """
    reference = _read(found, path)
    trained = f"{path} was trained with {reference.versions}"
    log.info("importing %s for the network of %s, which is not exported", reference.module, path)
    try:
        network = build_by(reference.model, reference.arguments)
    except ModelError as error:
        raise ModelError(f"{error} ({trained})") from error
    try:
        load_full_state(network, tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"the weights do not fit the network that {reference.model!r} builds here: {reason}. Its code or a package"
            f" has changed: {trained}"
        ) from None
    return network.eval().requires_grad_(False)


def require_trust(found: Mapping[str, Any], path: str | Path, trusted: Collection[str]) -> None:
    """Raise :class:`ModelError` unless the module of a file, or a package that contains it, is trusted."""
    reference = _read(found, path)
    if not any(reference.module == name or reference.module.startswith(f"{name}.") for name in trusted):
        raise ModelError(
            f"the network in {path} could not be exported; {reference.model!r} builds it, whose code"
            f" is not trusted. If that package is your own, add it to `score.trusted_modules`:"
            f" [{reference.module.partition('.')[0]}]"
        )


def _read(found: Mapping[str, Any], path: str | Path) -> Reference:
    try:
        reference = Reference(str(found["model"]), dict(found["arguments"]), dict(found["packages"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the network in {path} is damaged: {type(error).__name__}: {error}") from None
    if ":" not in reference.model:
        raise ModelError(f"the network in {path} is damaged: {reference.model!r} is not an import path")
    return reference


def _versions(module: str) -> dict[str, str]:
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return {name: importlib.metadata.version(name) for name in dict.fromkeys(["torch", *names])}
