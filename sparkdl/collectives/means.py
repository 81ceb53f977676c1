"""Means over ranks of many tensors, in messages of some megabytes."""

from collections.abc import Iterable, Iterator

import torch

from sparkdl.collectives.communicator import Communicator, Wait, is_expanded

__all__ = ["agree", "start_means"]

MESSAGE_BYTES = 8 << 20  # from here on the network's bandwidth counts, and not its latency


def start_means(communicator: Communicator, tensors: Iterable[torch.Tensor], *, name: str) -> Wait:
    """Begin to overwrite floating-point tensors by their means over ranks; calling the result waits. Runs on ranks.

    Nobody touches the tensors until the wait is over. All ranks give tensors of the same shapes, in the same order.
    """
    messages = enumerate(_messages(tensors))
    waits = [communicator.start_mean(message, name=f"{name}.{number}") for number, message in messages]

    def wait() -> None:
        for each in waits:
            each()

    return wait


@torch.no_grad()
def agree(communicator: Communicator, tensors: Iterable[torch.Tensor], *, name: str) -> None:
    """Overwrite floating-point tensors by their means over ranks, and others, which have none, by rank 0's.

    Expanded tensors are left alone: a forward pass made them, and there is nothing in them to agree on.
    """
    found = [tensor.detach() for tensor in tensors if not is_expanded(tensor)]
    start_means(communicator, (tensor for tensor in found if tensor.is_floating_point()), name=name)()
    for tensor in found:
        if not tensor.is_floating_point():
            tensor.copy_(communicator.broadcast(tensor))


def _messages(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, as many together as fit into a message; each message has one type and device."""
    message: list[torch.Tensor] = []
    for tensor in tensors:
        alike = message and (message[0].dtype, message[0].device) == (tensor.dtype, tensor.device)
        if message and not (alike and sum(each.nbytes for each in message) + tensor.nbytes <= MESSAGE_BYTES):
            yield message
            message = []
        message.append(tensor)
    if message:
        yield message
