"""A model's folder in MLflow's format, with the code that opens it and the packages it needs. Runs on the driver."""

import logging
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlflow.pyfunc
from mlflow.models import Model

from sparkdl.stack import installed_version
from sparkdl.tracking.original import Original
from sparkdl.tracking.translate import LOADER_MODULE

__all__ = ["save_model"]

CODE = Path(__file__).parents[1]
"""The package itself, which travels with each model: no index has it."""
RECORDED = ("fsspec", "numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "safetensors", "tenacity", "torch")
"""What any registered model needs beside it, and beside MLflow."""


def save_model(
    place: Path,
    folder: str | Path,
    model: Model,
    requirements: Sequence[str],
    *,
    original: Original | None = None,
    **described: Any,
) -> None:
    """Write a model's folder as ``model`` below ``place``; ``described`` is what else MLflow takes for it.

    ``requirements`` are packages beside those that every model needs. The example is the original's where there is one.
    """
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # it tells that it tries the example
    data = place / "data" / "model"  # under this name, whatever the caller's folder is called
    data.parent.mkdir()
    data.symlink_to(Path(folder).absolute())
    with warnings.catch_warnings():
        if original:  # it warns that it is given no example
            warnings.filterwarnings("ignore", ".*input example was not provided")
        mlflow.pyfunc.save_model(
            place / "model",
            loader_module=LOADER_MODULE,
            data_path=str(data),
            mlflow_model=model,
            code_paths=[str(CODE)],
            pip_requirements=[_requirement(name) for name in (*RECORDED, *requirements)],  # no guessing
            **described,
        )
    if original:
        original.copy_example(place / "model")
    shutil.rmtree(place / "data")


def _requirement(package: str) -> str:
    """The version that is installed, without what only its build has: no index knows ``torch==2.13.0+cpu``."""
    version = installed_version(package)
    return f"{package}=={version.partition('+')[0]}" if version else package
