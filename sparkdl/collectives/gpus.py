"""Checks that each rank has a GPU of its own, before NCCL is used, which would crash late or wait forever."""

from collections.abc import Sequence

import torch

from sparkdl.collectives.communicator import Communicator
from sparkdl.errors import ConfigError

__all__ = ["check_each_has_its_own", "check_is_there", "check_names"]


def check_is_there(device: torch.device | None) -> None:
    """Raise :class:`ConfigError` unless PyTorch sees the GPU that this rank was given. Runs on a rank."""
    if device is None or device.type != "cuda" or (device.index or 0) < torch.cuda.device_count():
        return
    raise ConfigError(
        f"this rank was given the GPU {device}, and PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPUs"
        " there; install a build of PyTorch that fits the driver of the executors' GPUs, or start Spark without GPUs"
        " for tasks"
    )


def check_each_has_its_own(communicator: Communicator, device: torch.device | None) -> None:
    """Raise :class:`ConfigError`, on all ranks, unless no two share a GPU, and all or none have one.

    All ranks call it together; the tensors that they exchange are on the CPU.
    """
    if communicator.size > 1:
        on_gpu = device is not None and device.type == "cuda"
        own = str(torch.cuda.get_device_properties(device).uuid) if on_gpu else ""
        check_names(communicator.all_gather_object(own))


def check_names(gpus: Sequence[str]) -> None:
    """Raise the same error for the names of GPUs by rank, which are empty for ranks without a GPU."""
    place: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if bool(gpu) != bool(gpus[0]):
            having, lacking = (rank, 0) if gpu else (0, rank)
            raise ConfigError(
                f"rank {having} has a GPU and rank {lacking} has none, so they cannot exchange tensors; give all tasks"
                " a GPU (spark.task.resource.gpu.amount=1), or none, or lower the number of ranks"
            )
        if gpu and place.setdefault(gpu, rank) != rank:
            raise ConfigError(
                f"ranks {place[gpu]} and {rank} were given the same GPU, but NCCL needs a GPU for each rank; set"
                " spark.task.resource.gpu.amount to 1, so that tasks share none, and cluster.num_ranks to the number of"
                " GPUs at most"
            )
