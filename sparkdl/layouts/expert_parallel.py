"""Expert parallelism: ranks with rows of their own share the experts of a network's mixtures.

Each rank has some experts of each mixture, and all other weights. It chooses experts for its own rows, sends the rows
to the ranks of these experts, and receives their outputs (Shazeer et al., 2017, arXiv 1701.06538, section 3.1; GShard:
Lepikhin et al., 2020, arXiv 2006.16668): two exchanges in the forward pass and two in the back-propagation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from typing_extensions import override

from sparkdl.collectives import Communicator, TorchCommunicator
from sparkdl.errors import ModelError
from sparkdl.layouts.cuts import Cuts
from sparkdl.layouts.part_of_network import PartOfNetwork, clip_parts
from sparkdl.models import Experts, MixtureOfExperts

__all__ = ["ExpertParallel", "ExpertPlan", "find_experts"]


class ExpertPlan(NamedTuple):
    """The number of ranks that share the experts of each mixture."""

    ranks: int


def find_experts(model: nn.Module, ranks: int) -> ExpertPlan:
    """The plan for ``ranks`` ranks. Runs on the driver.

    Raises :class:`ModelError` for a network without mixtures of experts, and for mixtures of fewer experts than ranks.
    """
    mixtures = {name: each for name, each in model.named_modules() if isinstance(each, MixtureOfExperts)}
    if not mixtures:
        raise ModelError(
            "cluster.layout.experts deals out the experts of sparkdl.models.MixtureOfExperts, and the network has no"
            " such layer; set it to 1, or train.model to mixture_of_experts"
        )
    for name, each in mixtures.items():
        if (count := len(each.experts.up)) < ranks:
            raise ModelError(
                f"cluster.layout.experts is {ranks}, and the layer {name!r} has {count} experts; give it at least one"
                " expert for each rank, or share them by fewer ranks"
            )
    return ExpertPlan(ranks)


class ExpertParallel(PartOfNetwork):
    """A network of which this rank has some experts, in memory, with the whole network's outputs. Runs on ranks.

    All ranks of the run call it together, each with its own rows. An expert sees rows of all ranks that share experts,
    so that its gradient is a sum over these ranks, where other gradients are of one rank's rows.
    """

    front: Sequence[str] = ()
    """See :class:`~sparkdl.layouts.TensorParallel`: there is none."""

    def __init__(self, model: nn.Module, plan: ExpertPlan, world: Communicator) -> None:
        """Keep this rank's experts of a network, in memory or on disk, with the weights of rank 0.

        ``world`` has all ranks; ranks that share experts have consecutive numbers.
        """
        world.broadcast_module(model)
        group, place = divmod(world.rank, plan.ranks)
        ranks = world.split(group)
        if not isinstance(ranks, TorchCommunicator):
            raise TypeError("rows go to experts by PyTorch's exchange, and need the torch backend")
        self._ranks = ranks
        self.alike = world.split(place)
        """The ranks that have the same experts."""
        self.parting = _cuts(model, plan)
        """Which rank has which part."""
        self.rank = place
        for mixture in model.modules():
            if isinstance(mixture, MixtureOfExperts):
                mixture.experts = _OwnExperts(mixture.experts, ranks, world)
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.detach().clone()  # it may be mapped from disk
        self.model = model

    @property
    def sharing(self) -> int:
        """The number of ranks that share experts."""
        return self._ranks.size

    @property
    def of_experts(self) -> dict[str, nn.Parameter]:
        """The parameters of this rank's experts, by name."""
        return {name: each for name, each in self.model.named_parameters() if name in self.parting.dims}

    def state(self) -> dict[str, Any]:
        """A description of the parts for a checkpoint, as plain values."""
        return {"tensor_cuts": self.parting.state()}

    def clip_gradients(self, largest: float) -> None:
        """Scale gradients down if their norm, over the experts of all ranks and all other weights, is larger."""
        clip_parts(self.model, self.parting.dims, self._ranks, largest)


class _OwnExperts(Experts):
    """The experts of one rank, for the rows that any of the ranks sends to them."""

    def __init__(self, whole: Experts, ranks: TorchCommunicator, world: Communicator) -> None:
        nn.Module.__init__(self)
        count = len(whole.up)
        self._held = [len(own) for own in torch.arange(count).tensor_split(ranks.size)]
        """The number of experts of each rank, as in :class:`Cuts`."""
        self._ranks, self._world = ranks, world
        own = torch.arange(count).split(self._held)[ranks.rank]
        for name, parameter in whole.named_parameters():
            setattr(self, name, nn.Parameter(parameter.detach()[own], requires_grad=parameter.requires_grad))

    @override
    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Gates are balanced over all ranks, so that steps equal those of a single rank. A rank without rows takes part
        # in evaluation mode, with a row that does not count.
        told = torch.cat([counts, counts.new_tensor([self.training])])
        of_world = torch.stack(self._world.all_gather(told))
        chosen, counting = of_world[:, :-1], of_world[:, -1:]
        of_ranks = chosen.split(self._ranks.size)[self._world.rank // self._ranks.size]
        own = of_ranks.split(self._held, dim=1)[self._ranks.rank]
        sent = [int(each.sum()) for each in counts.split(self._held)]
        taken = own.sum(dim=1).tolist()
        arrived: torch.Tensor = _Exchange.apply(rows, self._ranks, sent, taken)  # type: ignore[no-untyped-call]
        # Rows arrive by rank, and within a rank by expert.
        experts = torch.arange(own.shape[1], device=own.device).repeat(len(own)).repeat_interleave(own.flatten())
        order = experts.argsort(stable=True)
        answers, _ = super().forward(arrived[order], own.sum(dim=0))
        back: torch.Tensor = _Exchange.apply(answers[order.argsort()], self._ranks, taken, sent)  # type: ignore[no-untyped-call]
        return back, (chosen * counting).sum(dim=0)


class _Exchange(torch.autograd.Function):
    """Sends rows to the ranks of their experts; gradients return the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, ranks: TorchCommunicator, sent: Sequence[int], taken: Sequence[int]
    ) -> torch.Tensor:
        ctx.exchange = ranks, sent, taken
        return ranks.all_to_all(rows, sent=sent, taken=taken)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        ranks, sent, taken = ctx.exchange
        return ranks.all_to_all(gradients[0], sent=taken, taken=sent), None, None, None


def _cuts(model: nn.Module, plan: ExpertPlan) -> Cuts:
    """The cuts of the experts' parameters, along their first dimension, which is that of experts."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    dims: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Experts):
            dims |= {f"{name}.{each}": (0, len(stack)) for each, stack in module.named_parameters()}
    return Cuts(shapes, dims, plan.ranks)
