"""Independent subnet training of residual networks (ResIST: Dun et al., 2021, arXiv 2107.00961).

A round deals the residual blocks to the ranks, each block to one of them. For some steps, each rank trains the
shallower network that its blocks and all other layers make up: it neither computes nor sends what the other ranks'
blocks hold.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn
from typing_extensions import override

from sparkdl.settings.strategies import ResISTOptions
from sparkdl.training.strategies.residual_blocks import BLOCKS, BlockCut, choose_blocks, cut_blocks, let_skip
from sparkdl.training.strategies.rounds import Rounds

__all__ = ["ResIST"]


class ResIST(Rounds[ResISTOptions]):
    """Rounds of residual blocks: values pass by those that another rank has. All other layers become their mean.

    In the whole network a block adds 1/n of what it adds in a sub-network: the mean over the n ranks, of which one has
    it.
    """

    _part: ClassVar[type[BlockCut]] = BlockCut

    @override
    def _cut_up(self, model: nn.Module) -> tuple[Mapping[str, BlockCut], Mapping[str, int]]:
        blocks = choose_blocks(model, self._options.blocks)
        let_skip(model, blocks)
        return cut_blocks(model, blocks, ranks=self.communicator.size), {BLOCKS: len(blocks)}
