"""Hosts that a benchmark makes for itself: it takes root, as CI has it."""

from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.communication.course import BACKEND, Course, Track, follow
from benchmarks.network import Network, bytes_sent, network
from sparkdl.cluster import Rank, run_local
from sparkdl.data import Dataset
from sparkdl.planning.measure import topology_seconds
from sparkdl.settings import Train

MB = 1 << 20


def exchange(size: int, rank: Rank) -> tuple[dict[str, float], int]:
    with BACKEND.connect() as world:
        sent = bytes_sent()
        return topology_seconds(world, size), bytes_sent() - sent


def exchange_alone(size: int, rank: Rank) -> float:
    with BACKEND.connect() as world:
        return topology_seconds(world, size)["ring"]


def networks_held() -> set[str]:
    """The network that this process is in, and those that it keeps open."""
    paths = [Path("/proc/self/ns/net"), *Path("/proc/self/fd").iterdir()]
    return {str(path.readlink()) for path in paths if path.exists() and str(path.readlink()).startswith("net:")}


@pytest.fixture(scope="module")
def hosts() -> Network:
    with network(2) as hosts:
        yield hosts


def test_a_link_carries_no_more_than_it_was_given(hosts: Network) -> None:
    hosts.limit(200)
    for seconds, sent in hosts.run(partial(exchange, MB), backend=BACKEND):
        assert seconds["ring"] > 0.9 * MB * 8 / 200e6
        assert sent > 4 * 4 * MB  # four topologies, each four times, headers included


def test_ranks_of_one_host_need_no_link(hosts: Network) -> None:
    hosts.limit(100)
    (seconds, _), *_ = hosts.run(partial(exchange, MB), ranks_per_host=2, backend=BACKEND)
    assert seconds["two_levels"] < seconds["ring"]


def test_a_training_on_the_hosts_counts_steps_bytes_and_looks(hosts: Network, clouds: Dataset) -> None:
    hosts.limit(None)
    settings = Train(model="mlp", model_options={"hidden": [64]}, epochs=100, batch_size=8, learning_rate=0.01)
    courses = [Course(clouds, settings, 20, look_every=10), Course(clouds, settings, 3)]
    ranks: list[list[Track]] = hosts.run(partial(follow, courses), backend=BACKEND)
    tracks, short = zip(*ranks, strict=True)
    assert [(len(track.steps), track.accuracies) for track in short] == [(3, {})] * 2
    for track in tracks:
        assert len(track.steps) == 20 and set(track.accuracies) == {10, 20}
        gradients = 20 * 4 * (4 * 64 + 64 + 64 * 4 + 4)
        assert gradients <= track.steps[-1].handed_over < 1.2 * gradients
        assert track.steps[-1].handed_over < track.steps[-1].bytes < 10 * gradients
    assert tracks[0].accuracies == tracks[1].accuracies


def test_nothing_is_left_when_the_benchmark_fails() -> None:
    before, interfaces = networks_held(), set(psutil.net_if_addrs())
    with pytest.raises(KeyboardInterrupt), network(1):
        assert len(networks_held()) == len(before) + 2
        raise KeyboardInterrupt
    assert networks_held() == before and set(psutil.net_if_addrs()) == interfaces


def test_other_ranks_run_beside_the_hosts(hosts: Network) -> None:
    assert run_local(partial(exchange_alone, MB), 2, backend=BACKEND)[0] > 0
