"""Ranks on two hosts with two slots each, which Spark deals tasks out to in turn."""

from pathlib import Path

import pytest

from benchmarks.network import ADDRESS, DRIVER, inside, network
from benchmarks.standalone import standalone_cluster

from ..conftest import reported

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "hosts.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    with (
        network(2) as hosts,
        inside(hosts.bridge),
        standalone_cluster(tmp_path_factory.mktemp("cluster"), cores=(), pythonpath=str(ROOT), host=DRIVER) as cluster,
    ):
        for number, namespace in enumerate(hosts.hosts.values(), start=1):
            with inside(namespace):
                cluster.start_worker(2, host=ADDRESS.format(number))
        report = reported(cluster.command(PROGRAM), cluster.environment, timeout=300)
    return {name: ranks for name, ranks in report.items() if name != "said"}


def test_ranks_of_a_host_follow_each_other(report: dict) -> None:
    for ranks in report.values():
        hosts, local_ranks, totals, _ = zip(*ranks, strict=True)
        assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
        assert local_ranks == (0, 1, 0, 1) and totals == (4,) * 4


def test_an_all_reduce_leaves_each_host_once(report: dict) -> None:
    """By a ring of four, a rank sends 1.5 times what is reduced: of each host one does so over the network."""
    for ranks in report.values():
        assert all(1.4 < shares < 1.7 for *_, shares in ranks)
