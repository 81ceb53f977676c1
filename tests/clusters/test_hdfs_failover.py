"""Two name nodes: one takes over from the other one, and that costs a training time and nothing else."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from .hadoop import Hadoop, running_hadoop, until
from .trainings import same, training


@pytest.fixture
def paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hadoop]:
    """A cluster of its own, whose file system is ``hdfs://pair``: only its settings say where that is."""
    (tmp_path / "hadoop").mkdir()
    with running_hadoop(tmp_path / "hadoop", pair=True) as running:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(running.configuration.client))
        yield running


def test_a_run_goes_on_with_the_other_name_node(
    paired: Hadoop, dataset: str, undisturbed: Mapping[str, torch.Tensor], tmp_path: Path
) -> None:
    with training(paired, dataset, tmp_path) as run:
        run.wait_for_step(20)
        paired.find("name node")[0].kill()
        until(lambda: len(paired.find("name node")) == 1, "the name node did not end")
        paired.put_in_charge(1)
        until(lambda: not paired.safe(1), "the other name node did not take over")
        run.wait_for_step(run.step() + 10)
        assert same(run.weights(), undisturbed)
    assert "another attempt" not in run.said, run.said[-4000:]
