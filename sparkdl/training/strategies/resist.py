"""Independent subnet training of residual networks (ResIST: Dun et al., 2021, arXiv 2107.00961).

In each round, every residual block is dealt to one rank. For some steps, each rank trains the shallower network of its
blocks and all other layers: it neither computes nor sends the blocks of other ranks.
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
    """Rounds in which a rank skips the residual blocks of other ranks. All other layers are averaged.

    In the whole network, a block adds 1/n of what it adds in a sub-network, which is the mean over the n ranks, as only
    one has the block.
    """

    _part: ClassVar[type[BlockCut]] = BlockCut

    @override
    def _cut_up(self, model: nn.Module) -> tuple[Mapping[str, BlockCut], Mapping[str, int]]:
        blocks = choose_blocks(model, self._options.blocks)
        let_skip(model, blocks)
        return cut_blocks(model, blocks, ranks=self.communicator.size), {BLOCKS: len(blocks)}
