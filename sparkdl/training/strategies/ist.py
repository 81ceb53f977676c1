"""Independent subnet training (Yuan et al., 2019, arXiv 1910.02120): each rank trains a part of the network's neurons.

A round deals the neurons of all hidden layers to the ranks. For some steps, each rank trains the network that its
neurons make up by themselves: it computes with fewer of them, and sends 1/n² of the weights between two hidden layers.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn
from typing_extensions import override

from sparkdl.settings.strategies import ISTOptions
from sparkdl.training.strategies.rounds import Rounds
from sparkdl.training.strategies.sub_networks import Cut, choose_layers, count_neurons, find_cuts, tensors_of

__all__ = ["IST"]


class IST(Rounds[ISTOptions]):
    """Rounds of neurons: a sub-network's are those that its rank was dealt of each hidden layer.

    A sub-network's weights are larger than the same ones in the whole network as its neurons read fewer inputs; fresh
    weights are made smaller for it, so that sub-networks begin with the variance that the network has.
    """

    _part: ClassVar[type[Cut]] = Cut

    @override
    def _cut_up(self, model: nn.Module) -> tuple[Mapping[str, Cut], Mapping[str, int]]:
        cuts = find_cuts(model, choose_layers(model, self._options.layers))
        return cuts, count_neurons(cuts, tensors_of(model))
