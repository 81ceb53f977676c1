"""The environment variables of PyTorch's launcher, torchrun, by which the user's program finds the other ranks.

See https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import distributed
from typing_extensions import override

from sparkdl.collectives.backend import Meeting, Seat
from sparkdl.collectives.distributed import TorchBackend
from sparkdl.collectives.meeting import MeetingStore
from sparkdl.errors import ConfigError

__all__ = ["TorchrunBackend"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
USE_CPU = "ACCELERATE_USE_CPU"
"""Without this variable and without GPUs, Accelerate (and transformers' Trainer) assumes that each rank is alone."""


@dataclass
class TorchrunBackend(TorchBackend):
    """torch.distributed for programs that call ``init_process_group`` themselves.

    Rank 0 runs PyTorch's own store, at ``MASTER_ADDR`` and ``MASTER_PORT``, as long as its function runs. PyTorch would
    listen on all interfaces; this store listens only on the interface through which ranks and driver communicate.
    """

    variables: Mapping[str, str]
    """Further environment variables for the program."""
    _store: distributed.Store | None = field(default=None, init=False)

    @override
    def environment(self, place: Seat, meeting: Meeting, device: str) -> dict[str, str]:
        ranks = MeetingStore(f"{meeting.address}:{meeting.port}", meeting.token)
        if place.rank == 0:
            master = self._listen(meeting.own_address, place.size)
            ranks.set("master", master)
        else:
            master = ranks.get("master").decode()
        address, _, port = master.partition(":")
        found = {
            **super().environment(place, meeting, device),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "GROUP_RANK": str(place.cross_rank),
            "GROUP_WORLD_SIZE": str(place.cross_size),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(place.rank),
            "ROLE_WORLD_SIZE": str(place.size),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            **self.variables,
        }
        if device != "cpu":
            found[VISIBLE] = _gpus_of_host(place, device, ranks)
        elif not any(Path("/dev").glob("nvidia[0-9]*")):
            found[USE_CPU] = os.environ.get(USE_CPU, "true")
        return found

    @override
    def disconnect(self) -> None:
        super().disconnect()
        self._store = None

    def _listen(self, address: str, size: int) -> str:
        """Start the store; returns ``address:port``. On rank 0, ``init_process_group`` finds it by the port."""
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        self._store = distributed.TCPStore(
            address, port, size, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
        )
        return f"{address}:{port}"


def _gpus_of_host(place: Seat, device: str, ranks: MeetingStore) -> str:
    """The GPUs of a host's ranks by local rank, so that ``LOCAL_RANK`` is the index of a rank's own GPU in PyTorch.

    Raises :class:`ConfigError` where the process has used GPUs already, and would ignore another order.
    """
    visible = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    index = int(device.partition(":")[2])
    ranks.set(f"gpu/{place.host}/{place.local_rank}", visible[index] if visible else str(index))
    names = [ranks.get(f"gpu/{place.host}/{local_rank}").decode() for local_rank in range(place.local_size)]
    seen = visible[: len(names)] if visible else [str(number) for number in range(len(names))]
    if torch.cuda.is_initialized() and set(seen) != set(names):
        raise ConfigError(
            f"this rank's process has used another GPU in an earlier job, so it cannot see the GPUs {', '.join(names)};"
            " restart the Spark application"
        )
    return ",".join(names)
