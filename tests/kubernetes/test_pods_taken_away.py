"""Executors' pods that end in training: the run goes on in others, with the weights of one that was left alone."""

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from ..clusters.hadoop import until
from ..clusters.trainings import same
from .pods import Cluster, training_in_pods


def kill(cluster: Cluster) -> str:
    """The container ends by SIGKILL, as when its host has no memory left; Spark asks for another pod."""
    name, container = next(iter(cluster.executors().items()))
    container.signal(signal.SIGKILL)
    return name


def evict(cluster: Cluster) -> str:
    """What draining a node does, which asks whether budgets of disruption allow it."""
    name = next(iter(cluster.executors()))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    cluster.plane.ask("POST", cluster.plane.of_namespace(f"pods/{name}/eviction"), eviction)
    return name


def delete(cluster: Cluster) -> str:
    """What ``kubectl delete pod`` does."""
    name = next(iter(cluster.executors()))
    cluster.plane.ask("DELETE", cluster.plane.of_namespace(f"pods/{name}"))
    return name


def test_an_undisturbed_run_is_registered(undisturbed: Mapping[str, torch.Tensor]) -> None:
    assert undisturbed


@pytest.mark.parametrize("take_away", [kill, evict])
def test_a_run_ends_with_the_same_weights(
    take_away: Callable[[Cluster], str],
    cluster: Cluster,
    dataset: Path,
    undisturbed: Mapping[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    with training_in_pods(cluster, dataset, tmp_path) as run:
        run.wait_for_step(20)
        gone = take_away(cluster)
        until(lambda: gone not in cluster.executors(), f"{gone} did not end")
        assert same(run.weights(), undisturbed)
    assert "another attempt" in run.said, run.said[-4000:]


def test_a_pod_that_is_decommissioned_costs_no_attempt(
    cluster: Cluster, dataset: Path, undisturbed: Mapping[str, torch.Tensor], tmp_path: Path
) -> None:
    with training_in_pods(cluster, dataset, tmp_path, options={"spark.decommission.enabled": "true"}) as run:
        run.wait_for_step(20)
        gone = delete(cluster)
        until(lambda: gone not in cluster.executors(), f"{gone} did not end")
        assert same(run.weights(), undisturbed)
    assert "about to be taken away" in run.said and "another attempt" not in run.said, run.said[-4000:]
