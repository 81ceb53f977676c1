from types import SimpleNamespace

import pytest
import torch
from pyspark import TaskContext

from sparkdl.scoring.task import scoring_device


@pytest.mark.parametrize(
    ("resources", "cuda", "device"),
    [
        ({"gpu": SimpleNamespace(addresses=["1"])}, True, "cuda:1"),
        ({"gpu": SimpleNamespace(addresses=["1"])}, False, "cpu"),
        ({}, True, "cpu"),
        (None, True, "cpu"),
    ],
    ids=["a GPU", "PyTorch for CPUs", "no GPU", "no task"],
)
def test_a_task_scores_on_the_gpu_that_spark_has_given_it(
    monkeypatch: pytest.MonkeyPatch, resources: dict[str, SimpleNamespace] | None, cuda: bool, device: str
) -> None:
    context = None if resources is None else SimpleNamespace(resources=lambda: resources)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert scoring_device() == device
