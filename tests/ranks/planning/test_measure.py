"""What the cost model learns from real ranks."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.cluster import run_local
from sparkdl.collectives import Backend, TorchBackend
from sparkdl.data import Dataset
from sparkdl.planning.cost import fit_link, ring
from sparkdl.planning.measure import SIZES, Measurement, measure
from sparkdl.settings import Train
from sparkdl.settings.averaging import Averaging, SignOptions
from sparkdl.settings.strategies import AllReduceOptions, ISTOptions, LocalSGDOptions
from tests.language_blocks import VOCABULARY, language_blocks

MODEL_BYTES = 2 * 20 * 4  # matrices of 4 x 4, and biases
SUB_NETWORK_BYTES = (2 * 4 + 2 + 4 * 2 + 4) * 4  # with two of the four neurons in between
STRATEGIES = {
    "allreduce": AllReduceOptions(),
    "sign": AllReduceOptions(compression=SignOptions()),
    "local": LocalSGDOptions(period=500),
    "ist": ISTOptions(period=500),
    "ist, sharded": ISTOptions(period=500, sharded=True),
}


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*input_shape, 4), nn.Linear(4, num_classes))


class Bigrams(nn.Module):
    """What comes next follows from the token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.table(input_ids)
        return answer


def measured(
    dataset: Dataset,
    settings: Train,
    backend: Backend,
    strategies: Mapping[str, Averaging],
    memory: Mapping[str, float] | None = None,
) -> Measurement:
    run = partial(measure, dataset, settings, backend, strategies, memory=memory or {}, model_bytes=MODEL_BYTES)
    found: Measurement = run_local(run, 2, backend=backend)[0]
    return found


@pytest.fixture(scope="module")
def found(backend: Backend, clouds: Dataset) -> Measurement:
    settings = Train(model=network, batch_size=4)
    return measured(clouds, settings, backend, STRATEGIES)


def test_texts_in_blocks_are_measured_too(tmp_path: Path) -> None:
    settings = Train(model=Bigrams, batch_size=4)
    dataset, of_all, backend = language_blocks(tmp_path), {"local": LocalSGDOptions(period=500)}, TorchBackend()
    found = measured(dataset, settings, backend, of_all)
    assert found.steps["local"].payload == VOCABULARY**2 * 4
    assert all(0 < cost.computing < 1 for cost in found.steps.values())


def test_replicas_in_shards_say_what_travels_in_means_of_all_weights(clouds: Dataset) -> None:
    shards = {shard: AllReduceOptions(shard=shard) for shard in ("optimizer", "all")}
    settings, backend = Train(model=network, batch_size=4), TorchBackend()
    found = measured(clouds, settings, backend, shards)
    assert [cost.payload for cost in found.steps.values()] == [MODEL_BYTES, 1.5 * MODEL_BYTES]
    assert not any(cost.any_topology for cost in found.steps.values())


def test_a_strategy_that_does_not_fit_is_not_measured(clouds: Dataset) -> None:
    strategies = {"allreduce": AllReduceOptions(), "local": LocalSGDOptions(period=500)}
    settings, backend = Train(model=network, batch_size=4), TorchBackend()
    found = measured(clouds, settings, backend, strategies, memory={"allreduce": 1e15, "local": 1e3})
    assert list(found.steps) == ["local"]
    assert (found.inside, found.ranks_of_host) == ([], 2)


def test_each_strategy_says_what_it_sends_how_often_and_whether_it_adds_up(found: Measurement) -> None:
    assert found.steps["allreduce"].payload == found.steps["local"].payload == MODEL_BYTES
    assert 0 < found.steps["sign"].payload < MODEL_BYTES / 2
    assert found.steps["ist"].payload == found.steps["ist, sharded"].payload == SUB_NETWORK_BYTES
    periods = [(cost.period, cost.adds_up) for cost in found.steps.values()]
    assert periods == [(1, True), (1, False), (500, True), (500, False), (500, False)]
    assert all(0 < cost.computing < 1 for cost in found.steps.values())


def test_exchanges_of_each_size_are_measured_and_the_link_follows(found: Measurement) -> None:
    assert [traffic for traffic, _ in found.exchanges] == [ring(size, 2) for size in SIZES]
    assert all(seconds > 0 for _, seconds in found.exchanges)
    link = fit_link(found.exchanges)
    assert 0 <= link.start < 0.1 and link.bandwidth > 1e6


def test_it_is_known_how_ranks_share_the_cores_of_a_host(found: Measurement) -> None:
    assert found.cores.threads == max(1, len(os.sched_getaffinity(0)) // 2)
    assert 1 <= found.cores.slowdown < 10


def test_topologies_are_measured_as_far_as_the_backend_has_them(found: Measurement, backend: Backend) -> None:
    all_of_one_host = ["ring", "butterfly", "server", "sharded_servers"]
    assert list(found.topologies) == (all_of_one_host if backend.name == "torch" else ["ring"])
