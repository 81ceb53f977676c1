from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Tracking


@pytest.fixture
def client(store: str) -> MlflowClient:
    return MlflowClient(store)


@pytest.fixture
def settings(store: str, request: pytest.FixtureRequest) -> Callable[..., Tracking]:
    """Settings with an experiment and a model name of the test's own."""
    name = request.node.name.replace("[", "-").replace("]", "")
    return lambda **keys: Tracking(**{"uri": store, "experiment": name, "register_as": name, **keys})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model."""
    folder = tmp_path_factory.mktemp("anything")
    network = build("mlp", input_shape=(3,), num_classes=2, options={"hidden": []})
    export_network(network, folder / NETWORK_FILE, torch.zeros(1, 3))
    (folder / "card.json").write_text("{}")
    return folder
