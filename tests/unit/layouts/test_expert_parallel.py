"""Which networks have experts to deal out."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.layouts import ExpertPlan, find_experts
from sparkdl.models import MixtureOfExperts
from sparkdl.settings import Cluster, RankLayout
from sparkdl.training.checks.shared_replicas import tried_plan

MIXTURE = nn.Sequential(nn.Linear(4, 6), MixtureOfExperts(6, 3, 5), nn.Linear(6, 2))


def test_a_layout_with_experts_has_ranks_that_each_have_rows_of_their_own() -> None:
    cluster = Cluster(layout=RankLayout(data=2, experts=3))
    assert (cluster.ranks.max, cluster.replicas, cluster.ranks_of_replica) == (6, 6, 1)
    with pytest.raises(
        ConfigError, match="experts is 3 and tensor is 2, but ranks that share experts must have all other"
    ):
        RankLayout(tensor=2, experts=3)


def test_a_mixture_of_as_many_experts_as_ranks_can_be_dealt_out() -> None:
    assert tried_plan(MIXTURE, torch.rand(2, 4), RankLayout(experts=3), batch_size=8) == ExpertPlan(3)
    with pytest.raises(ModelError, match="is 4, and the layer '1' has 3 experts"):
        find_experts(MIXTURE, 4)
    with pytest.raises(ModelError, match=r"deals out the experts of sparkdl\.models\.MixtureOfExperts"):
        find_experts(nn.Linear(4, 2), 2)


def test_a_pipeline_would_leave_the_gates_unbalanced() -> None:
    with pytest.raises(ModelError, match="does not have the balance losses of its mixtures"):
        tried_plan(MIXTURE, torch.rand(2, 4), RankLayout(pipeline=2), batch_size=8)
