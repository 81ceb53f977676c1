"""What a rank tells of its steps: all of them in the sums, and few points of a curve."""

from typing import Any

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.data import Dataset
from sparkdl.training.replica import BatchFigures
from sparkdl.training.reports.reporter import POINTS, Measured, Reporter
from sparkdl.training.tasks import create_task

STEPS = 25


def test_many_steps_share_a_point_which_is_the_mean_over_their_rows(clouds: Dataset) -> None:
    task = create_task(clouds.card)
    messages: list[dict[str, Any]] = []

    def tell(rank: Rank) -> Measured:
        reporter = Reporter(rank, task)
        reporter.start_epoch(0, epochs=1, step=0, total=STEPS)
        reporter.flush()  # so that all steps come together
        for step in range(1, STEPS + 1):  # with as many rows, of which one is right
            figures = BatchFigures(torch.tensor(float(step)), torch.tensor([1.0]), rows=step, weight=None)
            reporter.step(step, [figures], global_rows=step, rate=1 / step)
        return reporter.flush()

    (measured,) = run_local(tell, 1, backend=None, on_message=lambda _, message: messages.append(message))
    assert measured.sums == [[step * step, 1.0, step] for step in range(1, STEPS + 1)]
    assert len(measured.steps) <= POINTS
    assert measured.steps[0] == pytest.approx([3, 14 / 6, 3 / 6, 1 / 3])  # of the steps 1, 2 and 3
    assert measured.steps[-1] == pytest.approx([25, 25, 1 / 25, 1 / 25])
    assert [message["steps"] for message in messages if message["kind"] == "steps"] == [measured.steps]
