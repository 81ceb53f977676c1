"""What tests/cluster/test_coming_and_going.py submits: an asynchronous run, which the test can slow down."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import sparkdl
from sparkdl import Cluster, Tracking, Train

SLOW = Path(sys.argv[2]) / "slow"
STEP_SECONDS = 0.01
SLOW_SECONDS = 0.3  # so that the run does not end while the test waits for executors


class Slow(nn.Module):
    """Takes its time, and more of it while there is a file."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Linear(*input_shape, num_classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(SLOW_SECONDS if SLOW.exists() else STEP_SECONDS)
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
