"""Independent subnet training in the middle of a round; the rest is promised of every strategy."""

from typing import Any

import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Batch
from sparkdl.settings import Train
from sparkdl.training.checkpoints.state import copied
from sparkdl.training.groups import Groups
from sparkdl.training.replica import Replica
from sparkdl.training.strategies.ist import IST
from sparkdl.training.tasks import Classification


def one_step(rank: Rank) -> dict[str, Any]:
    """The first step of a round, with an optimizer that has its moments from the beginning."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    settings = Train(strategy="ist", optimizer="torch.optim:Adagrad")
    with TorchBackend().connect() as communicator:
        replica = Replica(model, settings, Classification(2), Groups(communicator, communicator), torch.device("cpu"))
        replica.strategy.begin_epoch(0)
        replica.step([Batch(torch.full((4, 3), 1.0 + rank.rank), torch.tensor([0, 1, 1, 1]), 8)], rate=0.1)
        own, sent = copied(model.state_dict()), communicator.bytes_sent
        state = copied(replica.strategy.state())
        with replica.strategy.consensus() as whole:
            consensus = copied(whole.state_dict())
        after = copied(model.state_dict())
    return {"own": own, "state": state, "consensus": consensus, "after": after, "sent": communicator.bytes_sent - sent}


def test_a_rank_computes_with_its_neurons_alone_and_lends_the_whole_network_in_between() -> None:
    ranks = run_local(one_step, 2, backend=TorchBackend())
    assert [tuple(rank["own"]["0.weight"].shape) for rank in ranks] == [(3, 3), (2, 3)]
    assert [tuple(rank["own"]["2.weight"].shape) for rank in ranks] == [(2, 3), (2, 2)]
    assembled = IST.assemble(ranks[0]["state"], [rank["own"] for rank in ranks])
    for rank in ranks:
        assert all(torch.equal(value, rank["own"][name]) for name, value in rank["after"].items())
        assert rank["sent"] == 4 * (3 * 3 + 3 + 2 * 3 + 2 + 2 * 2 + 2)  # the larger share, and the output's bias
        for name, value in rank["consensus"].items():
            torch.testing.assert_close(value, assembled[name].float())
