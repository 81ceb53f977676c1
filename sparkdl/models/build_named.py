"""Builds a network with named inputs: its ``forward`` takes each input as the argument of that name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import InputSpec
from sparkdl.models.answer_check import try_network
from sparkdl.models.build import ScaledImages, build
from sparkdl.models.networks import NETWORKS
from sparkdl.models.recommenders import RECOMMENDERS
from sparkdl.models.user_network import make_network, name_of

__all__ = ["ScaledInputs", "build_by", "build_named"]


def build_by(model: str | Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    """The network that :func:`build_named` makes from these arguments if they contain ``inputs``, else ``build``."""
    return (build_named if "inputs" in arguments else build)(model, **arguments)


def build_named(
    model: str | Callable[..., Any],
    inputs: Mapping[str, InputSpec | Mapping[str, Any]],
    *,
    num_classes: int,
    options: Mapping[str, Any] | None = None,
    by_token: bool = False,
) -> nn.Module:
    """Build a network for named inputs, and try it on two rows. ``inputs`` are specs or their JSON.

    Runs on driver and ranks. ``model`` is the same as for :func:`sparkdl.models.build`, except that the built-in
    networks for named inputs are :data:`sparkdl.models.recommenders.RECOMMENDERS`. It is called with ``options``, and
    with those of the following that it has as arguments: ``num_classes``; ``input_shapes`` by name ((channels, height,
    width) of an image, (width,) of a vector or ids, (length of the longest row,) of a sequence); ``vocabularies`` by
    name (the number of different ids); and ``kinds`` by name, as in ``prepare.inputs``. Images are scaled as for
    :func:`sparkdl.models.build`. With ``by_token``, the network predicts the next token at each position of the only
    input, so it gets no ``num_classes``.

    Raises :class:`ModelError` if the model cannot be found or built, does not take the inputs, or does not return
    logits of shape (n, num_classes), or with ``by_token`` (n, length, at least num_classes).
    """
    specs = {name: InputSpec.model_validate(each) for name, each in inputs.items()}
    if isinstance(model, str) and model in NETWORKS:
        raise ModelError(
            f"the model {model!r} takes a single input, but the dataset has the named inputs {', '.join(specs)}: set a"
            f" network whose forward() takes these (for ids and numbers {', '.join(RECOMMENDERS)}), or prepare with"
            " `features` or `image` instead of `inputs`"
        )
    offered: dict[str, Any] = {} if by_token else {"num_classes": num_classes}
    offered |= {
        "input_shapes": {name: _shape(spec) for name, spec in specs.items()},
        "vocabularies": {name: spec.vocabulary for name, spec in specs.items() if spec.vocabulary},
        "kinds": {name: spec.kind for name, spec in specs.items()},
    }
    network = make_network(model, offered, options or {})
    rows = sample_inputs(specs)
    _check_arguments(network, list(rows), name_of(model))
    images = {name: spec for name, spec in specs.items() if spec.kind == "image"}
    if images:
        network = ScaledInputs(network, images)
    try_network(network, model, rows, num_classes, by_token=by_token)
    return network


class ScaledInputs(nn.Module):
    """A network behind layers that scale its images, as :class:`~sparkdl.models.build.ScaledImages` does."""

    def __init__(self, network: nn.Module, images: Mapping[str, InputSpec]) -> None:
        super().__init__()
        self.images = nn.ModuleDict(
            {name: ScaledImages(spec.shape[2], mean=spec.mean, std=spec.std) for name, spec in images.items()}
        )
        self.network = network

    def forward(self, **inputs: torch.Tensor) -> Any:
        """The network's outputs for inputs by name."""
        scaled = {name: layer(inputs[name]) for name, layer in self.images.items()}
        return self.network(**{**inputs, **scaled})


def _shape(spec: InputSpec) -> tuple[int, ...]:
    return (spec.shape[2], *spec.shape[:2]) if spec.kind == "image" else spec.shape


def _check_arguments(network: nn.Module, given: list[str], name: str) -> None:
    """Raise :class:`ModelError` for inputs that ``forward`` does not take, and for those that it lacks."""
    parameters = inspect.signature(network.forward).parameters.values()
    takes = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needs = [each.name for each in parameters if each.name in takes and each.default is each.empty]
    unknown = [] if any(each.kind is each.VAR_KEYWORD for each in parameters) else [x for x in given if x not in takes]
    missing = [each for each in needs if each not in given]
    if not unknown and not missing:
        return
    said = [f"takes no {', '.join(map(repr, unknown))}"] * bool(unknown)
    said += [f"needs {', '.join(map(repr, missing))}"] * bool(missing)
    raise ModelError(
        f"the model {name!r} {' and '.join(said)}: its forward() takes {', '.join(takes) or 'nothing'}, but the dataset"
        f" has {', '.join(given)}. Use the same names in `prepare.inputs` and as arguments of forward()"
    )
