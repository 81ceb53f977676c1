"""The outputs of a network: a tensor of logits, or several tensors by name.

Names are the keys of a mapping, or the attributes of an object with ``logits``; transformers' ``ModelOutput``
(https://huggingface.co/docs/transformers/main_classes/output) is both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer

__all__ = ["LOGITS", "OnlyTensors", "check_answer", "logits_of", "named_outputs", "output_of"]

LOGITS = "logits"
"""The output from which figures and predictions are computed."""


def logits_of(answered: Any) -> torch.Tensor:
    """The logits among a network's outputs, which :func:`check_answer` has checked. Runs anywhere."""
    return answered if isinstance(answered, torch.Tensor) else output_of(answered, LOGITS)


def output_of(answered: Any, name: str) -> torch.Tensor:
    """One of a network's outputs, by name; a bare tensor is the logits. Raises :class:`ModelError` if it is missing."""
    found = named_outputs(answered).get(name)
    if found is None:
        raise ModelError(f"the network returns no tensor {name!r}; {_what_it_answers(answered)}")
    return found


def named_outputs(answered: Any) -> dict[str, torch.Tensor]:
    """The tensors among a network's outputs, by name, in its order. Runs anywhere."""
    if isinstance(answered, torch.Tensor):
        return {LOGITS: answered}
    items = answered if isinstance(answered, Mapping) else _attributes(answered)
    return {str(name): value for name, value in items.items() if isinstance(value, torch.Tensor)}


def check_answer(answered: Any, names: Sequence[str], model: str) -> None:
    """Raise :class:`ModelError` with the model's name unless a network's outputs have tensors of these names."""
    found = named_outputs(answered)
    if missing := [name for name in names if name not in found]:
        raise ModelError(f"the model {model!r} returns no tensor {missing[0]!r}; {_what_it_answers(answered)}")


class OnlyTensors(nn.Module):
    """A network whose inputs and outputs are positional tensors, so that it can be traced."""

    def __init__(self, network: nn.Module, inputs: Sequence[str] | None, outputs: Sequence[str]) -> None:
        """``inputs`` are the names of its arguments; None: it takes one tensor."""
        super().__init__()
        self.network = network
        self._inputs, self._outputs = inputs, tuple(outputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs in their order, for inputs in their order."""
        given: Inputs = tensors[0] if self._inputs is None else dict(zip(self._inputs, tensors, strict=True))
        answered = answer(self.network, given)
        return tuple(output_of(answered, name) for name in self._outputs)


def _attributes(answered: Any) -> Mapping[str, Any]:
    if fields := getattr(answered, "_fields", None):  # a named tuple
        return {name: getattr(answered, name) for name in fields}
    return getattr(answered, "__dict__", {})


def _what_it_answers(answered: Any) -> str:
    if found := named_outputs(answered):
        kind = "one tensor" if isinstance(answered, torch.Tensor) else f"a {type(answered).__name__} with"
        return f"it returns {kind} {', '.join(map(repr, found))}"
    return (
        f"it returns a {type(answered).__name__}, but a network must return a tensor of logits, or a mapping or object"
        " with 'logits'"
    )
