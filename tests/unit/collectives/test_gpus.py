"""What is said of ranks that have not a GPU each, before NCCL is asked."""

import pytest
import torch

from sparkdl.collectives.gpus import check_is_there, check_names
from sparkdl.errors import ConfigError


@pytest.mark.parametrize("gpus", [["GPU-a", "GPU-b"], ["", ""], ["GPU-a"]])
def test_ranks_with_a_gpu_each_or_all_without_one_are_fine(gpus: list[str]) -> None:
    check_names(gpus)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (["GPU-a", "GPU-b", "GPU-a"], "ranks 0 and 2 were given the same GPU.*spark.task.resource.gpu.amount to 1"),
        (["GPU-a", ""], "rank 0 has a GPU and rank 1 has none"),
        (["", "", "GPU-a"], "rank 2 has a GPU and rank 0 has none"),
    ],
)
def test_ranks_that_share_a_gpu_or_lack_one_are_named(gpus: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_names(gpus)


def test_a_gpu_that_pytorch_does_not_see_is_named() -> None:
    with pytest.raises(ConfigError, match=r"given the GPU cuda:99, and PyTorch .* sees \d+ GPUs"):
        check_is_there(torch.device("cuda:99"))
    check_is_there(torch.device("cpu"))
