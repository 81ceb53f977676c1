"""What a model has beside its files, for a version that is made from it. Runs on the driver."""

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
"""The tags of a version that name the version it was made from, and the run in which that was trained."""


@dataclass(frozen=True)
class Original:
    """A model in the store, from which another is made."""

    model: Model
    """What MLflow knows of it: signature, example, metadata."""
    folder: Path
    """That of the MLflow model."""
    tags: Mapping[str, str]
    """Of the version, with those that say what it was made from; none of what is no version."""
    figures: dict[str, float]
    """Those that the version carries, by which the gate compares it."""
    texts: Mapping[str, str]
    """Its ``description`` and ``run_link``, where it has them."""

    def kept_beside(self, measured: Collection[str]) -> dict[str, Any]:
        """What the version that is made from it has beside its figures, of which some were measured anew."""
        return {**self.texts, "tags": {name: text for name, text in self.tags.items() if name not in measured}}

    def copy_example(self, folder: Path) -> None:
        """Put the files of its example row into the folder of another MLflow model."""
        info = self.model.saved_input_example_info or {}
        names = {str(name) for key, name in info.items() if key.endswith("_path")}
        for name in names:
            if (self.folder / name).is_file():
                copyfile(self.folder / name, folder / name)


def original_of(model_uri: str, settings: Tracking) -> Original:
    """What a version that is made from a model has to keep of it.

    The tag by which jobs agree on an alias is left out. Raises :class:`~sparkdl.errors.RegistryError` for what does not
    exist.
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
