"""Tensor parallelism: the ranks of a replica compute the layers of a plan together, each with a part of every layer.

All ranks see the same rows. A block's inputs are whole on every rank, and so are its outputs, which are the sum of the
ranks' results (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053): one all-reduce in the forward pass, and one in the
back-propagation. Weights are plain tensors, so that everything that works with whole replicas, such as averaging
gradients during back-propagation, also works with parts.

The front of a plan is data parallel within the replica: :mod:`sparkdl.layouts.row_shares`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

from sparkdl.layouts.block_edges import Entrance, RanksOfReplica, leave
from sparkdl.layouts.cuts import Cuts, dealt
from sparkdl.layouts.part_of_network import PartOfNetwork, clip_parts
from sparkdl.layouts.row_shares import RowShares
from sparkdl.layouts.tensor_plan import TensorPlan

__all__ = ["TensorParallel", "cut"]


class TensorParallel(PartOfNetwork):
    """A network of which this rank has a part, in memory, with the whole network's outputs. Runs on ranks.

    All ranks of a replica call it together, with the same rows. Gradients of the front's parameters are those of this
    rank's rows, times the number of ranks of a replica, so that their mean over all ranks of a run is the gradient.
    """

    def __init__(self, model: nn.Module, plan: TensorPlan, ranks: RanksOfReplica) -> None:
        """Cut a network that is the same on all ranks, in memory or on disk."""
        self.parting = Cuts.of(model, plan)
        """Which rank has which part."""
        self.front = plan.front
        """The names of the parameters whose gradients are of this rank's rows only."""
        self.rank, self._ranks = ranks.rank, ranks
        cut(model, plan, ranks)
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.detach().clone()  # it may be mapped from disk
        self.model = model

    def state(self) -> dict[str, Any]:
        """A description of the parts for a checkpoint, as plain values."""
        return {"tensor_cuts": self.parting.state()}

    def clip_gradients(self, largest: float) -> None:
        """Scale gradients down if their norm over all ranks' parts is larger."""
        clip_parts(self.model, self.parting.dims, self._ranks, largest)


def cut(model: nn.Module, plan: TensorPlan, ranks: RanksOfReplica) -> None:
    """Replace layers by this rank's parts, copied into memory; a front gets only this rank's rows."""
    layers: Any
    shares = RowShares(ranks, plan.ranks) if plan.front else None
    if shares:
        model.register_forward_pre_hook(shares.own, with_kwargs=True)
    for block in plan.blocks:
        entrance = Entrance(ranks, shares if block is plan.blocks[0] else None)
        first, last = dealt(block.units, ranks.rank, plan.ranks)
        for name in block.columns:
            layers = model.get_submodule(name)
            each = layers.out_features // block.units
            model.set_submodule(name, _Columns(layers, slice(first * each, last * each), entrance))
        layers = model.get_submodule(block.row)
        each = layers.in_features // block.units
        rows = _Rows(layers, slice(first * each, last * each), entrance, ranks)
        # Without a hook on a layer, torch.nn.TransformerEncoderLayer bypasses its layers in evaluation: a fused kernel
        # uses their weights directly.
        rows.register_forward_pre_hook(_as_it_is)
        model.set_submodule(block.row, rows)
    for name in plan.embeddings:
        layers = model.get_submodule(name)
        model.set_submodule(name, _Table(layers, slice(*dealt(layers.num_embeddings, ranks.rank, plan.ranks)), ranks))


class _Columns(nn.Linear):
    """A linear layer with some of the outputs."""

    def __init__(self, whole: nn.Linear, outputs: slice, entrance: Entrance) -> None:
        super().__init__(whole.in_features, outputs.stop - outputs.start, bias=whole.bias is not None, device="meta")
        self.weight = _part(whole.weight, outputs)
        if whole.bias is not None:
            self.bias = _part(whole.bias, outputs)
        self._entrance = entrance

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(self._entrance(input))


class _Rows(nn.Linear):
    """A linear layer with some of the inputs, whose results are summed over ranks."""

    def __init__(self, whole: nn.Linear, inputs: slice, entrance: Entrance, ranks: RanksOfReplica) -> None:
        super().__init__(inputs.stop - inputs.start, whole.out_features, bias=whole.bias is not None, device="meta")
        self.weight = _part(whole.weight, (slice(None), inputs))
        if whole.bias is not None:
            self.bias = whole.bias
        self._entrance, self._ranks = entrance, ranks

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._entrance.clear()
        total = leave(functional.linear(input, self.weight), self._ranks)
        return total if self.bias is None else total + self.bias.to(total.dtype)


class _Table(nn.Embedding):
    """An embedding with some of the rows; vectors of other rows are zero, and the sum over ranks is complete."""

    def __init__(self, whole: nn.Embedding, rows: slice, ranks: RanksOfReplica) -> None:
        super().__init__(rows.stop - rows.start, whole.embedding_dim, device="meta")
        self.weight = _part(whole.weight, rows)
        self._first, self._ranks = rows.start, ranks
        self._padding = whole.padding_idx
        """The index whose vector has no gradient."""

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        places = input - self._first
        own = (places >= 0) & (places < self.num_embeddings)
        padding = None if self._padding is None else self._padding - self._first
        if padding is not None and not 0 <= padding < self.num_embeddings:
            padding = None
        found = functional.embedding(places.where(own, 0), self.weight, padding)
        return leave(found * own.unsqueeze(-1), self._ranks)


def _as_it_is(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """A hook that changes nothing."""


def _part(whole: torch.Tensor, place: slice | tuple[slice, ...]) -> nn.Parameter:
    return nn.Parameter(whole.detach()[place].clone(), requires_grad=whole.requires_grad)
