"""HDFS and YARN, raw images of the kind of Fashion-MNIST, and a run that nothing has disturbed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from ..idx_files import write_idx
from .hadoop import CONFIGURATION, ROOT, Hadoop, running_hadoop
from .trainings import training


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with running_hadoop(tmp_path_factory.mktemp("hadoop")) as running:
        yield running


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which the relative paths of ``conf/fashion_mnist.yaml`` lead to 240 + 40 images that are easy."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(280, dtype=np.uint8) % 10)
    images = random.integers(0, 64, (280, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 4] += 128
    raw = folder / "output" / "raw" / "fashion-mnist"
    write_idx(raw, "train", images[:240], labels[:240])
    write_idx(raw, "t10k", images[240:], labels[240:])
    return folder


@pytest.fixture(scope="session")
def dataset(hadoop: Hadoop, images: Path) -> str:
    """The images as a dataset on HDFS."""
    place = f"{hadoop.configuration.hdfs}/kept/dataset"
    hadoop.submit(ROOT / "jobs" / "prepare.py", str(CONFIGURATION), f"prepare.output={place}", cwd=images)
    return place


@pytest.fixture(scope="session")
def undisturbed(hadoop: Hadoop, dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    """The weights of a training that was left alone."""
    with training(hadoop, dataset, tmp_path_factory.mktemp("undisturbed")) as run:
        return run.weights()
