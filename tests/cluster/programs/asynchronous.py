"""What tests/cluster/test_asynchronous.py submits: a run without lockstep that takes some seconds an epoch."""

import json
import sys
import time

import torch
from torch import nn

import sparkdl
from sparkdl import Cluster, Tracking, Train

STEP_SECONDS = 0.03


class Slow(nn.Module):
    """Takes its time, so that something can happen meanwhile."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Linear(*input_shape, num_classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(STEP_SECONDS)
        outputs: torch.Tensor = self.layers(rows)
        return outputs


if __name__ == "__main__":
    dataset, folder, epochs = sys.argv[1:]
    trained = sparkdl.train(
        dataset,
        Train(
            strategy={"kind": "downpour", "rule": "sgd"},
            model=Slow,
            batch_size=1,
            epochs=int(epochs),
            learning_rate=0.01,
            run_dir=folder,
            resume="auto",
        ),
        cluster=Cluster(num_ranks={"min": 1, "max": 3}, servers=1, start_timeout=60),
        tracking=Tracking(uri=f"sqlite:///{folder}/mlflow.db"),
    )
    print(json.dumps({"history": trained.history, "metrics": trained.metrics}))
