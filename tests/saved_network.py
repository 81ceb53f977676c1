"""A network as MLflow saves a model: a folder that can be named instead of a registered model."""

from pathlib import Path
from typing import Any

import torch
from mlflow.models import Model

from sparkdl.models import NETWORK_FILE, export_network
from sparkdl.tracking.translate import LOADER_MODULE


def saved_network(folder: Path, network: torch.nn.Module, rows: Any) -> str:
    """Export the network for such rows, with what MLflow writes beside it; returns the model's URI."""
    (folder / "data").mkdir(parents=True)
    export_network(network, folder / "data" / NETWORK_FILE, rows)
    Model(flavors={"python_function": {"loader_module": LOADER_MODULE, "data": "data"}}).save(str(folder / "MLmodel"))
    return str(folder)
