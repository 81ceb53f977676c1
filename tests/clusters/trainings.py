"""Trainings on YARN with their checkpoints on HDFS, slow enough for something to happen to them."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sparkdl.storage import list_folder
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shared
from sparkdl.training.checkpoints.checkpoint_folder import latest, step_of

from .hadoop import PROPERTIES, ROOT, Hadoop

SETTINGS = {"model": "slow_network:Slow", "epochs": 16, "batch_size": 16, "checkpoint_steps": 5, "seed": 3}
LONGEST_SECONDS = 420
"""A training takes 20 s on two cores of its own. Then there are an application's start, and what happens to it."""


@dataclass
class Training:
    """A submitted training."""

    runs: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def said(self) -> str:
        """What the driver has printed."""
        return self.log.read_text(errors="replace")

    def step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        folder = self._folder()
        return step_of(latest(folder)) if folder else 0

    def wait_for_step(self, step: int) -> None:
        """Return when there is a checkpoint of this step or a later one."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while self.step() < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"there was no checkpoint of step {step}\n{self.said[-8000:]}")
            time.sleep(0.3)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Those of the last checkpoint, once the job has ended well."""
        code = self.process.wait(LONGEST_SECONDS)
        assert code == 0, self.said[-8000:]
        checkpoint = latest(str(self._folder()))
        weights: Mapping[str, torch.Tensor] = load_shared(str(self._folder()), load_manifest(checkpoint))["model"]
        return weights

    def _folder(self) -> str | None:
        """Of the only run."""
        names = [run.name for run in list_folder(self.runs)]
        return f"{self.runs}/{names[0]}" if names else None


@contextmanager
def training(
    hadoop: Hadoop, dataset: str, folder: Path, *, options: tuple[str, ...] = (), **train: Any
) -> Iterator[Training]:
    """A training with two ranks in two containers; it ends with the block."""
    runs = f"{hadoop.configuration.hdfs}/{folder.name}/runs"
    tree = {
        "train": SETTINGS | train | {"dataset": dataset, "run_dir": runs},
        "cluster": {"num_ranks": 2, "slot_timeout": 180},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "spool": f"{folder}/spool"},
    }
    (folder / "slow.yaml").write_text(yaml.safe_dump(tree))
    log = folder / "driver.log"
    started = hadoop.start(
        ROOT / "jobs" / "train.py", str(folder / "slow.yaml"), log=log, options=(*PROPERTIES, *options)
    )
    with started:
        try:
            yield Training(runs, log, started)
        finally:
            started.kill()


def same(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    """Whether two networks are equal to the last bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
