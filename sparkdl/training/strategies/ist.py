"""Independent subnet training (Yuan et al., 2019, arXiv 1910.02120): each rank trains a part of the network's neurons.

In each round, the neurons of all hidden layers are dealt to the n ranks. For some steps, each rank trains the
sub-network of its neurons: it computes with 1/n of them, and sends 1/n² of the weights between two hidden layers.
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
    """Rounds in which each rank's sub-network has the neurons that the rank was dealt of each hidden layer.

    In a sub-network, weights are scaled up, because neurons read fewer inputs. Initial weights are scaled down, so that
    sub-networks begin with the variance of the whole network.
    """

    _part: ClassVar[type[Cut]] = Cut

    @override
    def _cut_up(self, model: nn.Module) -> tuple[Mapping[str, Cut], Mapping[str, int]]:
        cuts = find_cuts(model, choose_layers(model, self._options.layers))
        return cuts, count_neurons(cuts, tensors_of(model))
