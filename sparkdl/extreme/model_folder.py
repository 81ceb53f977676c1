"""From finished repetitions to the folder that is evaluated, registered and scored with. Runs on the driver."""

from collections.abc import Iterable
from pathlib import Path

from sparkdl.data import Dataset
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import DatasetError
from sparkdl.extreme.ensemble import ENSEMBLE_NAME, EnsembleCard
from sparkdl.extreme.store import Finished, fetch_repetition
from sparkdl.settings import Extreme

__all__ = ["write_model_folder"]


def write_model_folder(folder: Path, dataset: Dataset, settings: Extreme, records: Iterable[Finished]) -> EnsembleCard:
    """Put some finished repetitions, and all that scoring needs beside them, into a new folder."""
    if dataset.card.labels is None:
        raise DatasetError(f"{dataset.path} is not sparse; prepare it with `prepare.sparse: true`")
    card = EnsembleCard(
        width=dataset.input.shape[0],
        hashed_features=settings.hashed_features,
        labels=dataset.card.labels,
        hidden=tuple(settings.hidden),
        buckets=settings.buckets,
        hash_family=settings.hash_family,
        seed=settings.seed,
        loss=settings.loss,
        asked=settings.repetitions,
        repetitions={record.repetition: record.sha256 for record in records},
    )
    folder.mkdir(parents=True)
    (folder / ENSEMBLE_NAME).write_text(card.model_dump_json(indent=1))
    keep_inputs(dataset, folder)
    for repetition in card.repetitions:
        fetch_repetition(settings.run_dir, repetition, folder)
    return card
