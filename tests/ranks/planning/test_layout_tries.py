"""What ranks find when they try layouts."""

from collections.abc import Callable

import pytest

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.planning.cores import Cores
from sparkdl.planning.cost import Link
from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.planning.layout_costs import LayoutCosts, costs_of_layouts
from sparkdl.planning.layout_tries import tried
from sparkdl.planning.links import Links
from sparkdl.settings import Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.network_to_train import build_model
from sparkdl.training.task_to_train import task_to_train

LINKS = Links.of_one_host(Link(start=0.001, bandwidth=1e9), 2)
SETTINGS = Train(model="mlp", model_options={"hidden": [64, 64, 64]}, batch_size=8, optimizer="sgd")


def launch(work: Callable[[Rank], float]) -> list[float]:
    return run_local(work, 2, backend=TorchBackend())


@pytest.fixture(scope="module")
def costs(clouds: Dataset) -> LayoutCosts:
    model, task = build_model(clouds, SETTINGS), task_to_train(clouds.card, SETTINGS)
    return costs_of_layouts(model, some_rows(clouds), SETTINGS, task, ranks=2, cores=Cores(threads=1), links=LINKS)


@pytest.fixture
def choices(costs: LayoutCosts, monkeypatch: pytest.MonkeyPatch) -> Choices:
    """All of them predicted to be equally fast, and worth a try."""
    monkeypatch.setattr("sparkdl.planning.layout_choice.MOST_TRIES", 5)
    possible = [
        Choice(each.layout, AllReduceOptions(), 1.0, each.rows, each.memory, 0.0, each.batches)
        for each in costs.possible.values()
    ]
    whole = possible[0]
    return Choices([whole, whole._replace(strategy=AllReduceOptions(shard="all")), *possible[1:]], {}, room=1e9)


def test_ranks_take_steps_in_each_layout_and_the_slowest_one_counts(clouds, costs, choices) -> None:
    found = tried(choices, costs, clouds, SETTINGS, TorchBackend(), launch)
    assert [each.name for each in found.possible] == [
        *("{data: 2}", "{data: 2}, shard: all", "{data: 1, tensor: 2}", "{data: 1, tensor: 2} from 5 on"),
        "{data: 1, pipeline: 2}",
    ]
    assert not found.refused
    assert all(each.measured and 1e-5 < each.measured < 1 for each in found.possible)


def test_a_layout_in_which_a_rank_fails_leaves_the_choice_and_the_others_are_tried(clouds, costs, choices) -> None:
    def fail(work: Callable[[Rank], float]) -> list[float]:
        taken.append(work)
        if len(taken) == 2:
            raise RankError("rank 1 died", rank=1, exception_type="process death")
        return launch(work)

    taken: list[Callable[[Rank], float]] = []
    found = tried(choices, costs, clouds, SETTINGS, TorchBackend(), fail)
    assert found.refused == {"{data: 2}, shard: all": "ranks failed when they tried it: rank 1 died"}
    assert len(found.possible) == 4 and all(each.measured for each in found.possible)
