"""A node that an operator takes away with notice: what that costs a training on YARN."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from .hadoop import Hadoop
from .kills import give_notice, mend
from .trainings import LONGEST_SECONDS, SETTINGS, Training, same, training

OPTIONS = ("--conf", "spark.decommission.enabled=true")
SECONDS = 5.0
"""From notice to last checkpoint, on cores that nobody else uses; the test allows for a machine that is busy."""


@pytest.fixture(autouse=True)
def whole(hadoop: Hadoop) -> Iterator[None]:
    """Afterwards, both nodes are there again."""
    yield
    mend(hadoop)


def seconds_to_last_checkpoint(run: Training, noticed: float) -> float:
    """From a notice to the last checkpoint of the attempt that hears of it."""
    step, written, ended = run.step(), noticed, False
    while not ended:
        assert run.process.poll() is None and time.monotonic() < noticed + LONGEST_SECONDS, run.said[-8000:]
        ended = "going on from step" in run.said  # before the checkpoints are looked at: the next attempt has none yet
        if (now := run.step()) > step:
            step, written = now, time.monotonic()
        time.sleep(0.05)
    assert f"going on from step {step}\n" in run.said, f"step {step} was the last that was seen\n{run.said[-4000:]}"
    return written - noticed


def test_a_node_is_left_within_seconds_of_its_notice_and_no_row_is_trained_twice(
    hadoop: Hadoop, dataset: str, undisturbed: Mapping[str, torch.Tensor], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    network = {"model": "slow_network:Noting", "model_options": {"folder": str(notes)}}
    with training(hadoop, dataset, tmp_path, options=OPTIONS, **network) as run:
        run.wait_for_step(20)
        seconds = seconds_to_last_checkpoint(run, give_notice(hadoop, LONGEST_SECONDS))
        assert same(run.weights(), undisturbed)
    uses = Counter(digest for file in notes.glob("*.rows") for digest in file.read_text().split())
    print(f"notice to last checkpoint on YARN: {seconds:.1f} s; {sum(uses.values())} rows of {len(uses)} are trained")
    assert set(uses.values()) == {SETTINGS["epochs"]}
    assert "about to be taken away" in run.said and "another attempt" not in run.said, run.said[-4000:]
    assert seconds < 3 * SECONDS
