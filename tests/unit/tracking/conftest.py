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
def settings(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Tracking]:
    """Settings with an experiment and a model name of the test's own, and a spool."""
    name = request.node.name.replace("[", "-").replace("]", "")
    own = {"uri": store, "experiment": name, "register_as": name, "spool": f"{tmp_path}/spool"}
    return lambda **keys: Tracking(**{**own, **keys})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model."""
    folder = tmp_path_factory.mktemp("anything")
    network = build("mlp", input_shape=(3,), num_classes=2, options={"hidden": []})
    export_network(network, folder / NETWORK_FILE, torch.zeros(1, 3))
    (folder / "card.json").write_text("{}")
    return folder
