"""Writes a model in MLflow's format, with the code that loads it and the packages it needs. Runs on the driver."""

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
"""The package sparkdl itself, which is saved with each model because no package index has it."""
RECORDED = ("fsspec", "numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "safetensors", "tenacity", "torch")
"""The packages that every registered model needs in addition to sparkdl and MLflow."""


def save_model(
    place: Path,
    folder: str | Path,
    model: Model,
    requirements: Sequence[str],
    *,
    original: Original | None = None,
    **described: Any,
) -> None:
    """Write an MLflow model to the folder ``model`` below ``place``; ``described`` are further arguments for MLflow.

    ``requirements`` are packages in addition to those of every model. With an ``original``, its example is used.
    """
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # it logs that it tries the example
    data = place / "data" / "model"  # under this name, whatever the caller's folder is called
    data.parent.mkdir()
    data.symlink_to(Path(folder).absolute())
    with warnings.catch_warnings():
        if original:  # MLflow warns that there is no example
            warnings.filterwarnings("ignore", ".*input example was not provided")
        mlflow.pyfunc.save_model(
            place / "model",
            loader_module=LOADER_MODULE,
            data_path=str(data),
            mlflow_model=model,
            code_paths=[str(CODE)],
            pip_requirements=[_requirement(name) for name in (*RECORDED, *requirements)],  # or MLflow guesses them
            **described,
        )
    if original:
        original.copy_example(place / "model")
    shutil.rmtree(place / "data")


def _requirement(package: str) -> str:
    """The installed version without its local part, because package indexes do not have ``torch==2.13.0+cpu``."""
    version = installed_version(package)
    return f"{package}=={version.partition('+')[0]}" if version else package
