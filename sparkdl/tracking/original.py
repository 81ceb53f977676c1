"""The properties of a registered model that a version made from it inherits. Runs on the driver."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

from mlflow.models import Model

from sparkdl.settings import Tracking
from sparkdl.tracking.download import download_whole, version_of
from sparkdl.tracking.registry import PASSED, figures

__all__ = ["Original", "original_of"]

MADE_FROM, TRAINED_IN = "sparkdl.made_from", "sparkdl.trained_in"
"""The tags that name the original version, and the run in which it was trained."""


@dataclass(frozen=True)
class Original:
    """A model in the store from which another one is made."""

    model: Model
    """MLflow's description of the model: signature, example, metadata."""
    folder: Path
    """The folder of the MLflow model."""
    tags: Mapping[str, str]
    """The version's tags, with those that name its original; empty for a model that is not registered."""
    figures: dict[str, float]
    """The version's figures, by which the gate compares versions."""
    texts: Mapping[str, str]
    """The version's ``description`` and ``run_link``, if it has them."""

    def kept_beside(self, measured: Collection[str]) -> dict[str, Any]:
        """The tags and texts that the new version inherits, without figures that were ``measured`` again."""
        return {**self.texts, "tags": {name: text for name, text in self.tags.items() if name not in measured}}

    def copy_example(self, folder: Path) -> None:
        """Copy the files of the example rows to the folder of another MLflow model."""
        info = self.model.saved_input_example_info or {}
        names = {str(name) for key, name in info.items() if key.endswith("_path")}
        for name in names:
            if (self.folder / name).is_file():
                copyfile(self.folder / name, folder / name)


def original_of(model_uri: str, settings: Tracking) -> Original:
    """The properties of a model that a version made from it inherits.

    The tag by which jobs agree on an alias is left out. Raises :class:`~sparkdl.errors.RegistryError` for a model that
    does not exist.
    """
    version, folder = version_of(model_uri, settings), download_whole(model_uri, settings)
    model = Model.load(str(folder))
    if version is None:
        return Original(model, folder, {}, {}, {})
    tags = {name: text for name, text in version.tags.items() if name != PASSED}
    tags |= {MADE_FROM: f"models:/{version.name}/{version.version}"}
    if version.run_id:
        tags.setdefault(TRAINED_IN, version.run_id)
    texts = {"description": version.description, "run_link": version.run_link}
    return Original(model, folder, tags, figures(version), {name: text for name, text in texts.items() if text})
