"""A network that cannot be exported: its file holds weights, and the name of the code that builds it.

Reading such a file runs that code, so that it is done for modules alone that whoever reads it trusts.
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
"""The version of files of networks that are kept by their code's name."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reference:
    """What builds a network."""

    model: str
    """An import path, ``package.module:name``."""
    arguments: dict[str, Any]
    """Of :func:`sparkdl.models.build_by`, as JSON has them."""
    packages: dict[str, str]
    """The versions of PyTorch and, if it is installed, of the package."""

    @property
    def module(self) -> str:
        """The module that is imported."""
        return self.model.partition(":")[0]

    @property
    def versions(self) -> str:
        """The packages that it was trained with, in words."""
        return ", ".join(f"{name} {version}" for name, version in self.packages.items())


def refer(model: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Reference:
    """What builds a network from these arguments of :func:`sparkdl.models.build_by`. Runs on the driver.

    Raises :class:`ModelError` for code that no other process could import by a name, and for options that are no JSON.
    """
    name = (
        model if isinstance(model, str) else f"{getattr(model, '__module__', '')}:{getattr(model, '__qualname__', '')}"
    )
    module = name.partition(":")[0]
    if isinstance(model, nn.Module) or module in ("", "__main__") or "<" in name:
        raise ModelError(
            f"{name_of(model)!r} has no name by which another process could import it; put it into a module of its own,"
            " and name it in train.model as package.module:name"
        )
    if not isinstance(model, str) and import_model(name) is not model:
        raise ModelError(f"{name!r} is not the same as {name_of(model)!r}; name it in train.model by its import path")
    try:
        plain = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"train.model_options of {name!r} are kept as JSON, which has numbers, texts, lists and mappings: {error}"
        ) from None
    return Reference(name, plain, _versions(module))


def write_reference(network: nn.Module, path: str | Path, reference: Reference) -> Path:
    """Write a network's weights, and what builds it. Runs on the driver."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in full_state(network).items()}
    save_file(state, path, metadata={"sparkdl": json.dumps({"version": REFERENCE, **asdict(reference)})})
    return Path(path)


def rebuild(found: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], path: str | Path) -> nn.Module:
    """The network of a file whose module is trusted, in evaluation mode. Runs anywhere; runs its code.

    Raises :class:`ModelError` for a module that is missing, and for weights that do not fit what it builds here.
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
            f"the weights do not fit what {reference.model!r} builds here: {reason}. Its code has changed, or a package"
            f" has another version: {trained}"
        ) from None
    return network.eval().requires_grad_(False)


def require_trust(found: Mapping[str, Any], path: str | Path, trusted: Collection[str]) -> None:
    """Raise :class:`ModelError` unless the module of a file, or a package that it is in, is among the trusted ones."""
    reference = _read(found, path)
    if not any(reference.module == name or reference.module.startswith(f"{name}.") for name in trusted):
        raise ModelError(
            f"the network in {path} is not exported: the code of {reference.model!r} builds it, which is not run. If"
            f" that package is your own, name it in `score.trusted_modules`: [{reference.module.partition('.')[0]}]"
        )


def _read(found: Mapping[str, Any], path: str | Path) -> Reference:
    try:
        reference = Reference(str(found["model"]), dict(found["arguments"]), dict(found["packages"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the network in {path} is damaged: {type(error).__name__}: {error}") from None
    if ":" not in reference.model:
        raise ModelError(f"the network in {path} is damaged: {reference.model!r} is no import path")
    return reference


def _versions(module: str) -> dict[str, str]:
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return {name: importlib.metadata.version(name) for name in dict.fromkeys(["torch", *names])}
