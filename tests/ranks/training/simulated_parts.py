"""Rounds of sub-networks in one process, by the definition of each method: each a network of its own size."""

import copy
from math import sqrt

import torch
from torch import nn

from sparkdl.training.strategies.rounds import STATISTICS_BATCHES
from sparkdl.training.strategies.sub_networks import deal

__all__ = ["DealtBlocks", "DealtNeurons"]


class DealtNeurons:
    """The network of each rank's neurons; what reads fewer neurons is larger for it."""

    def __init__(self, whole: nn.Module, size: int) -> None:
        self.whole, self.size = whole, size
        self.neurons: list[list[torch.Tensor]]
        """By rank, those of each layer in the round; of the inputs and the outputs, all."""

    def make_fresh(self) -> None:
        for layer in dense(self.whole)[1:]:
            layer.weight.data /= sqrt(self.size)

    def begin(self, number: int) -> list[nn.Module]:
        layers = dense(self.whole)
        counts = {str(place): len(layer.weight) for place, layer in enumerate(layers[:-1])}
        ends = torch.arange(layers[0].weight.shape[1]), torch.arange(len(layers[-1].weight))
        shares = deal(counts, size=self.size, seed=0, number=number)
        self.neurons = [[ends[0], *own.values(), ends[1]] for own in shares]
        return [self._sub_network(own) for own in self.neurons]

    def _sub_network(self, neurons: list[torch.Tensor]) -> nn.Module:
        model = copy.deepcopy(self.whole)
        for layer, columns, rows in zip(dense(model), self._columns(neurons), neurons[1:], strict=True):
            larger = layer.weight.shape[1] / len(columns)
            layer.weight = nn.Parameter(layer.weight.detach()[rows][:, columns] * larger)
            layer.bias = nn.Parameter(layer.bias.detach()[rows])
        for norm, rows in zip(norms(model), neurons[1:], strict=False):
            norm.weight, norm.bias = (nn.Parameter(each.detach()[rows]) for each in (norm.weight, norm.bias))
            norm.running_mean, norm.running_var = norm.running_mean[rows], norm.running_var[rows]
        return model

    def _columns(self, neurons: list[torch.Tensor]) -> list[torch.Tensor]:
        """By layer, the columns that read the neurons before: of a channel that is flattened, all its places."""
        columns, before = [], len(neurons[0])
        for layer, own in zip(dense(self.whole), neurons, strict=False):
            width = layer.weight.shape[1] // before
            columns.append((own[:, None] * width + torch.arange(width)).flatten())
            before = len(layer.weight)
        return columns

    @torch.no_grad()
    def end(self, models: list[nn.Module]) -> None:
        for model, own in zip(models, self.neurons, strict=True):
            layers = zip(dense(self.whole), dense(model), self._columns(own), own[1:], strict=True)
            for layer, part, columns, rows in layers:
                layer.weight[rows[:, None], columns] = part.weight * (len(columns) / layer.weight.shape[1])
                layer.bias[rows] = part.bias
            for norm, part, rows in zip(norms(self.whole), norms(model), own[1:], strict=False):
                norm.weight[rows], norm.bias[rows] = part.weight, part.bias
                norm.num_batches_tracked.fill_(STATISTICS_BATCHES)
        biases = [dense(model)[-1].bias for model in models]
        dense(self.whole)[-1].bias.copy_(sum(biases) / len(biases))


class DealtBlocks:
    """The network of each rank's residual blocks, which are places 2 to 5 of a stack, between two linear layers."""

    places = range(2, 6)

    def __init__(self, whole: nn.Module, size: int) -> None:
        self.whole, self.size = whole, size
        self.shares: list[list[int]]
        """By rank, the places of its blocks in the round."""

    def make_fresh(self) -> None:
        for place in self.places:
            self._scale(self.whole[place], 1 / self.size)

    def begin(self, number: int) -> list[nn.Module]:
        shares = deal({"blocks": len(self.places)}, size=self.size, seed=0, number=number)
        self.shares = [[self.places[int(block)] for block in own["blocks"]] for own in shares]
        models = []
        for own in self.shares:
            blocks = [copy.deepcopy(self.whole[place]) for place in own]
            for block in blocks:
                self._scale(block, self.size)
            models.append(nn.Sequential(*copy.deepcopy([*self.whole[:2]]), *blocks, copy.deepcopy(self.whole[6])))
        return models

    @torch.no_grad()
    def end(self, models: list[nn.Module]) -> None:
        for model, own in zip(models, self.shares, strict=True):
            for place, block in zip(own, model[2:-1], strict=True):
                self._scale(block, 1 / self.size)
                self.whole[place].load_state_dict(block.state_dict())
                norms(self.whole[place])[0].num_batches_tracked.fill_(STATISTICS_BATCHES)
        for place, of_sub_network in ((1, 1), (6, -1)):
            states = [model[of_sub_network].state_dict() for model in models]
            mean = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
            self.whole[place].load_state_dict(mean)

    def _scale(self, block: nn.Module, factor: float) -> None:
        for parameter in dense(block)[-1].parameters():
            parameter.data *= factor


def dense(model: nn.Module) -> list[nn.Linear | nn.Conv1d]:
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv1d)]


def norms(model: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
