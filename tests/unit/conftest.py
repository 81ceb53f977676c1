from pathlib import Path

import pytest
import torch

from sparkdl.data.card import InputSpec
from sparkdl.data.model_card import ModelCard
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Tracking
from sparkdl.tracking.store import connect


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for all tests, because making its tables takes seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/deeper/mlflow.db"
    connect(Tracking(uri=uri))
    return uri


def make_folder(folder: Path, spec: InputSpec, labels: tuple[str, ...]) -> Path:
    """A model's folder, as training writes it, with a network that has learned nothing."""
    card = ModelCard(
        input=spec,
        label_names=labels,
        raw_columns={spec.column: "binary" if spec.kind == "image" else "array<float>"},
        preprocessing=False,
    )
    torch.manual_seed(0)
    network = build("cnn" if spec.kind == "image" else "mlp", input_shape=spec.shape, num_classes=len(labels))
    export_network(network, folder / NETWORK_FILE, torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)))
    (folder / "card.json").write_text(card.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 8x6 images in three classes."""
    spec = InputSpec(column="image", kind="image", shape=(8, 6, 1), dtype="uint8")
    return make_folder(tmp_path_factory.mktemp("images"), spec, ("cat", "dog", "Ünïcode"))


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of vectors of four numbers in two classes."""
    spec = InputSpec(column="features", kind="vector", shape=(4,), dtype="float32")
    return make_folder(tmp_path_factory.mktemp("vectors"), spec, ("no", "yes"))
