"""A name node that does not answer, or has to start again, costs a training time and nothing else."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch

from .hadoop import Hadoop, until
from .trainings import same, training

STOPPED_SECONDS = 30.0
"""Longer than a client waits by itself. A change of the policy is tried by hand with 120, too."""


@pytest.fixture
def name_node(hadoop: Hadoop) -> psutil.Process:
    (found,) = hadoop.find("name node")
    return found


def test_a_run_waits_for_its_name_node(
    name_node: psutil.Process, hadoop: Hadoop, dataset: str, undisturbed: Mapping[str, torch.Tensor], tmp_path: Path
) -> None:
    with training(hadoop, dataset, tmp_path) as run:
        run.wait_for_step(10)
        name_node.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        name_node.send_signal(signal.SIGCONT)
        run.wait_for_step(run.step() + 10)
        name_node.kill()
        until(lambda: not hadoop.find("name node"), "the name node did not end")
        hadoop.start_daemon("name node")
        until(lambda: not hadoop.safe(), "the name node did not come back")  # after half a minute of safe mode
        assert same(run.weights(), undisturbed)
    assert "does not answer" in run.said and "another attempt" not in run.said, run.said[-4000:]
