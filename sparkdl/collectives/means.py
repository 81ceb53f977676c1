"""Means over ranks of many tensors, in messages of some megabytes."""

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from sparkdl.collectives.averaging import Averager, Ring, advance, finish
from sparkdl.collectives.communicator import Communicator, Wait, is_expanded

__all__ = ["agree", "start_means"]

MESSAGE_BYTES = 8 << 20  # from here on, the time depends on the network's bandwidth, and no longer on latency


def start_means(averager: Averager, tensors: Iterable[torch.Tensor], *, name: str) -> Wait:
    """Begin to overwrite floating-point tensors with their means over ranks; calling the result waits. Runs on ranks.

    The tensors must not be used until the wait is over. All ranks pass tensors of the same shapes in the same order.
    """
    messages = enumerate(_messages(tensors))
    exchanges = [averager.exchange(message, key=f"{name}.{number}") for number, message in messages]
    for exchange in exchanges:
        advance(exchange)
    return partial(finish, exchanges)


@torch.no_grad()
def agree(
    communicator: Communicator, tensors: Iterable[torch.Tensor], *, name: str, averager: Averager | None = None
) -> None:
    """Overwrite floating-point tensors with their means over ranks, and tensors of other types with rank 0's.

    The averager computes the means, by default by the backend's own ring. Expanded tensors are skipped: they are
    results of a forward pass, and have no values of their own.
    """
    found = [tensor.detach() for tensor in tensors if not is_expanded(tensor)]
    floating = (tensor for tensor in found if tensor.is_floating_point())
    start_means(averager or Ring(communicator), floating, name=name)()
    for tensor in found:
        if not tensor.is_floating_point():
            tensor.copy_(communicator.broadcast(tensor))


def _messages(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors in order, as many per message as fit; a message has one type and device."""
    message: list[torch.Tensor] = []
    for tensor in tensors:
        alike = message and (message[0].dtype, message[0].device) == (tensor.dtype, tensor.device)
        if message and not (alike and sum(each.nbytes for each in message) + tensor.nbytes <= MESSAGE_BYTES):
            yield message
            message = []
        message.append(tensor)
    if message:
        yield message
