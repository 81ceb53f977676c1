"""Sharded replicas: all ranks take the same step on rows of their own, and each keeps a shard of the model.

PyTorch's ``fully_shard`` (FSDP2; Zhao et al., 2023, arXiv 2304.11277) cuts each parameter into ranges of rows, one for
each rank. A layer's weights are all-gathered for its forward pass and its back-propagation, and its gradients are
reduce-scattered. Optimizers step on the shards (ZeRO: Rajbhandari et al., 2020, arXiv 1910.02054).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import TorchCommunicator
from sparkdl.layouts.moments import moments_by_name, put_moments
from sparkdl.layouts.part_of_network import PartOfNetwork
from sparkdl.layouts.regions import Slices
from sparkdl.layouts.units import units_of
from sparkdl.models import full_state

__all__ = ["FullySharded"]


class FullySharded(PartOfNetwork):
    """A network of which this rank keeps a shard: the same module, with DTensors as parameters. Runs on ranks.

    All ranks call all methods and forward passes together, with rows or without. Gradients are summed over ranks, not
    averaged.
    """

    def __init__(
        self, model: nn.Module, communicator: TorchCommunicator, device: torch.device, *, whole_in_step: bool
    ) -> None:
        """Cut a network that is the same on all ranks, in memory or on disk, and put this rank's shard on a device.

        ``whole_in_step``: gathered weights are kept from the forward pass to the back-propagation, which saves an
        all-gather, and takes the memory of the whole network.
        """
        self.model = model
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
        self.parting = Slices(shapes, communicator.size)
        """Which rank has which part."""
        self.rank = communicator.rank
        """The index of this rank's part."""
        mesh = communicator.mesh(device)
        for unit in [*units_of(model), model]:
            sharded = fully_shard(unit, mesh=mesh, reshard_after_forward=not whole_in_step)
            sharded.set_custom_all_gather(_Gather(communicator))
            sharded.set_custom_reduce_scatter(_Scatter(communicator))
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            sharded.set_reduce_scatter_unused_params(True)  # a rank may have no rows for a branch of the network

    def take_apart(self) -> None:
        """Free weights that were gathered for a forward pass without back-propagation."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @override
    def weights(self) -> dict[str, torch.Tensor]:
        """By name, this rank's shards and all buffers, not copied."""
        self.take_apart()
        return {name: _local(tensor) for name, tensor in full_state(self.model).items()}

    @override
    def moments(self, optimizer: Optimizer) -> dict[str, Any]:
        """By name, the optimizer's state of the shards (:mod:`sparkdl.layouts.moments`), not copied."""
        return {name: _local(value) for name, value in moments_by_name(self.model, optimizer).items()}

    @override
    def put_moments(self, optimizer: Optimizer, moments: Mapping[str, Any]) -> None:
        """Overwrite the optimizer's state of :meth:`moments`."""
        self.take_apart()
        put_moments(self.model, optimizer, moments, _like_shard)


def _local(value: Any) -> Any:
    """The rank's own part of a DTensor; other values as they are."""
    return value.to_local().detach() if isinstance(value, DTensor) else value


def _like_shard(parameter: nn.Parameter, value: Any) -> Any:
    """A value with the shard's shape as a DTensor that is sharded like the parameter; other values as they are."""
    assert isinstance(parameter, DTensor)
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape != parameter.to_local().shape:
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


class _Exchange:
    """An implementation of ``fully_shard``'s exchanges by a communicator, which counts bytes and seconds."""

    def __init__(self, communicator: TorchCommunicator) -> None:
        self._communicator = communicator

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        self._communicator.gather_into(output_tensor, input_tensor)


class _Scatter(_Exchange):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        op: distributed.ReduceOp,
        async_op: bool = False,
    ) -> None:
        self._communicator.scatter_sum(output_tensor, input_tensor)
