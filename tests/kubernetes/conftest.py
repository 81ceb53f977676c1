"""An API server with what runs its pods, raw images, and a run that nothing has disturbed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from ..clusters.conftest import images
from .pods import CONFIGURATION, ROOT, Cluster, kubernetes, training_in_pods

__all__ = ["images"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kubernetes(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(scope="session")
def dataset(cluster: Cluster, images: Path) -> Path:
    """The images as a dataset."""
    cluster.submit(ROOT / "jobs" / "prepare.py", str(CONFIGURATION), "prepare.output=kept", cwd=images)
    return images / "kept"


@pytest.fixture(scope="session")
def undisturbed(
    cluster: Cluster, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, torch.Tensor]:
    """The weights of a training that was left alone."""
    with training_in_pods(cluster, dataset, tmp_path_factory.mktemp("undisturbed")) as run:
        return run.weights()
