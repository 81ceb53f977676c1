"""What ``cluster.layout: auto`` becomes."""

import pytest

from sparkdl.errors import ConfigError
from sparkdl.planning import plan_training
from sparkdl.planning.cost import Link, StepCost, Traffic
from sparkdl.planning.layout_costs import LayoutCost, LayoutCosts
from sparkdl.planning.links import Links
from sparkdl.planning.train import _chosen
from sparkdl.planning.training_plan import TrainingPlan
from sparkdl.settings import Cluster, RankLayout, Train

CHOOSING = Cluster(num_ranks=2, layout="auto")
LINK = Link(1e-4, 1e9)
WHOLE = LayoutCost(RankLayout(data=2), 32, 1e9, 1.0, Traffic(0, 0), 1e6)
SHARED = LayoutCost(RankLayout(data=1, tensor=2), 32, 4e8, 0.9, Traffic(6, 1e6), 5e5)


@pytest.fixture
def room(monkeypatch, clouds):
    """Let the plan say that ranks have so many bytes left."""

    def plan(size: float) -> TrainingPlan:
        return TrainingPlan(
            ranks=2,
            links=Links.of_one_host(LINK, ranks=2),
            model_bytes=10**6,
            measured={"ring": 0.01},
            measured_by=2,
            link=LINK,
            strategies={"allreduce": StepCost(0.1, 1e6), "allreduce, shard: all": StepCost(0.15, 1.5e6)},
            memory={"allreduce": 1e9, "allreduce, shard: all": 7e8},
            layouts=LayoutCosts({"{data: 2}": WHOLE, "{data: 1, tensor: 2}": SHARED}, {}, {}, seconds=0.1),
            room=size,
        )

    return lambda size: monkeypatch.setattr(plan_training, "plan_layout", lambda *given: plan(size))


def test_with_room_for_them_ranks_have_whole_replicas(room, clouds) -> None:
    room(2e9)
    chosen = _chosen(clouds, Train(), CHOOSING, None)
    assert (chosen.cluster.layout, chosen.cluster.num_ranks) == (None, 2)
    assert chosen.settings == Train() and chosen.name == "{data: 2}"


def test_shards_are_taken_where_only_they_fit_and_are_faster(room, clouds) -> None:
    room(8e8)
    chosen = _chosen(clouds, Train(), CHOOSING, None)
    assert chosen.settings.strategy.shard == "all" and chosen.cluster.layout is None


def test_with_less_room_ranks_share_a_replica(room, clouds) -> None:
    room(5e8)
    chosen = _chosen(clouds, Train(), CHOOSING, None)
    assert chosen.cluster.layout == RankLayout(data=1, tensor=2)
    assert "of the layouts that fit, {data: 1, tensor: 2}" in chosen.plan


def test_where_nothing_fits_the_error_says_what_would(room, clouds) -> None:
    room(1e8)
    with pytest.raises(ConfigError, match=r"each rank has 100 MB left, and no layout fits: {data: 1, tensor: 2} takes"):
        _chosen(clouds, Train(), CHOOSING, None)


def test_what_is_given_is_left_as_it_is(clouds) -> None:
    given = Cluster(layout={"data": 1, "tensor": 2})
    assert _chosen(clouds, Train(), given, None).cluster is given
    assert _chosen(clouds, Train(), Cluster(num_ranks=1, layout="auto"), None).cluster.layout is None


def test_other_strategies_and_other_libraries_are_refused(clouds) -> None:
    with pytest.raises(ConfigError, match=r"for the strategy allreduce without options"):
        _chosen(clouds, Train(strategy={"kind": "local_sgd"}), CHOOSING, None)
    with pytest.raises(ConfigError, match=r"set cluster\.backend to 'torch' or 'auto'"):
        _chosen(clouds, Train(), Cluster(num_ranks=2, layout="auto", backend="horovod"), None)
    with pytest.raises(ConfigError, match=r"needs a fixed number of ranks"):
        Cluster(num_ranks={"max": 4}, layout="auto")
