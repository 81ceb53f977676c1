"""The forms of a model, made and measured. Runs in a Spark task, which has the model's files."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import SparkFiles, TaskContext

from sparkdl.cluster import limited_threads
from sparkdl.data import Dataset
from sparkdl.data.model_card import ModelCard
from sparkdl.forms.gated import FormMaker
from sparkdl.forms.network_forms import NetworkForms
from sparkdl.settings.compress import Compress
from sparkdl.storage import upload_files

__all__ = ["make_forms"]


def make_forms(
    files: Sequence[tuple[str, str]], dataset: Dataset, split: str, settings: Compress, target: str
) -> list[str]:
    """Make the forms of a model, measure each beside it, and put those that may stay into ``target``.

    ``files`` are those of the model's folder, by their names there and among what Spark has brought here. Returns a
    line of JSON for each form: its ``name``, and the ``form``, or why it was ``refused``.
    """
    context = TaskContext.get()
    with limited_threads(context.cpus() if context else 1), TemporaryDirectory() as scratch:
        folder, made = Path(scratch, "model"), Path(scratch, "made")
        folder.mkdir()
        made.mkdir()
        for name, shipped in files:
            (folder / name).symlink_to(SparkFiles.get(shipped))
        maker = _maker(folder, dataset, split, settings, made)
        lines = [json.dumps({"name": name, **maker.make(name)}) for name in settings.forms]
        upload_files(target, made)
    return lines


def _maker(folder: Path, *arguments: Any) -> FormMaker[Any]:
    if ModelCard.load(folder).labels is None:
        return NetworkForms(folder, *arguments)
    from sparkdl.forms.ensemble_forms import EnsembleForms  # which loads Numba

    return EnsembleForms(folder, *arguments)
