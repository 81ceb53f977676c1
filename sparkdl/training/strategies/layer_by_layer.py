"""Evaluates a network that is split over ranks, with all ranks together. Runs on ranks."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

from sparkdl.collectives import Communicator
from sparkdl.models.networks import WordVectors
from sparkdl.training.strategies.plain_stacks import layers_of
from sparkdl.training.strategies.sub_networks import Cut, Neurons

__all__ = ["LayerByLayer"]


class LayerByLayer(nn.Module):
    """The whole network of a plain stack, as a module that all ranks call equally often, with their own rows or none.

    The rows of each rank in turn are broadcast. For each hidden layer, every rank computes its neurons' activations,
    which are all-gathered; the outputs are an all-reduced sum. A rank holds the activations of one layer for one batch,
    and no weights but its own.
    """

    def __init__(
        self,
        model: nn.Module,
        cuts: Mapping[str, Cut],
        owners: Sequence[Neurons],
        communicator: Communicator,
    ) -> None:
        """``model`` has this rank's parts, with all columns of hidden layers; it is not copied."""
        super().__init__()
        self._model = [model]  # in a list, so that its parameters are not this module's
        self._cuts, self._owners, self._communicator = cuts, owners, communicator
        self._outputs = [layer for _, layer in layers_of(model) if isinstance(layer, nn.Linear)][-1].out_features

    @override
    def train(self, mode: bool = True) -> "LayerByLayer":
        self._model[0].train(mode)
        return super().train(mode)

    @override
    @torch.no_grad()
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs of this rank's rows, of shape (n, outputs), n = 0 included."""
        rank = self._communicator.rank
        counts = [int(count) for count in self._communicator.all_gather(torch.tensor(len(inputs)))]
        answer = torch.zeros(0, self._outputs, device=inputs.device)
        for root, count in enumerate(counts):
            if count:
                rows = inputs if root == rank else inputs.new_empty((count, *inputs.shape[1:]))
                outputs = self._compute(self._communicator.broadcast(rows, root=root))
                answer = outputs if root == rank else answer
        return answer

    def _compute(self, values: torch.Tensor) -> torch.Tensor:
        before: str | None = None  # the layer of which ``values`` has only this rank's neurons
        for name, layer in layers_of(self._model[0]):
            if isinstance(layer, WordVectors):
                values, before = layer(values), f"{name}.table"
                continue
            if not isinstance(layer, nn.Linear):
                values = layer(values)
                continue
            if self._cuts[f"{name}.weight"].rows is None:
                total = self._communicator.all_reduce(functional.linear(values, layer.weight), op="sum")
                return total if layer.bias is None else total + layer.bias
            values = layer(values if before is None else self._gathered(values, before))
            before = name
        raise AssertionError("the last layer's neurons are the outputs")

    def _gathered(self, values: torch.Tensor, layer: str) -> torch.Tensor:
        """The activations of all neurons of a layer; ``values`` are those of this rank's neurons."""
        shares = [neurons[layer] for neurons in self._owners]
        longest = max(map(len, shares))
        found = self._communicator.all_gather(functional.pad(values, (0, longest - values.shape[1])))
        whole = values.new_empty(len(values), sum(map(len, shares)))
        for share, answers in zip(shares, found, strict=True):
            whole[:, share.to(values.device)] = answers[:, : len(share)]
        return whole
