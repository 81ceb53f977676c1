"""Makes inputs, labels and weights from the columns of files that stay in place. Runs anywhere."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.class_indices import class_indices
from sparkdl.data.dataset import Dataset
from sparkdl.data.preparing.fitting import fitted_columns
from sparkdl.preprocessing import FittedPipeline, as_matrix, read_pipeline
from sparkdl.preprocessing.raw_rows import fitted_rows
from sparkdl.storage import download_files

__all__ = ["Examples", "examples_of", "one_array"]


@dataclass(frozen=True)
class Examples:
    """Turns rows into examples. It is small, because it is pickled into tasks."""

    raw_columns: Mapping[str, str]
    """The columns from which inputs are made, with their Spark types."""
    pipeline: FittedPipeline | None
    """The stages that make inputs; None if inputs are the arrays of the only raw column."""
    output: str
    width: int
    label: str
    label_names: tuple[str, ...]
    """Class names by class index; empty if labels are numbers."""
    weight: str | None

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.raw_columns, self.label, *([self.weight] if self.weight else [])]))

    def inputs(self, rows: pa.Table) -> NDArray[np.float32]:
        """The inputs, of shape (rows, width)."""
        columns = [one_array(rows, name) for name in self.raw_columns]
        if self.pipeline is None:
            ((name, _),) = self.raw_columns.items()
            made: Any = fitted_rows(columns[0], name, "vector", width=self.width)[0]
        else:
            made = self.pipeline.transform(fitted_columns(columns, self.raw_columns, self.pipeline.needs), self.output)
        return as_matrix(made)

    def labels(self, rows: pa.Table) -> NDArray[np.int64] | NDArray[np.float64]:
        """Class indices, or numbers, of shape (rows,)."""
        labels = one_array(rows, self.label)
        if not self.label_names:
            numbers: NDArray[np.float64] = labels.cast(pa.float64()).to_numpy(zero_copy_only=False)
            return numbers
        found = labels if pa.types.is_dictionary(labels.type) else labels.dictionary_encode()
        classes = class_indices(_names(found.dictionary), self.label_names)
        # A dictionary may contain values that no row has.
        indices: NDArray[np.int64] = pc.fill_null(classes, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        classes_of_rows: NDArray[np.int64] = indices[found.indices.to_numpy(zero_copy_only=False)]
        return classes_of_rows

    def weights(self, rows: pa.Table) -> NDArray[np.float64] | None:
        """The weight of each row; None if rows have no weights."""
        if self.weight is None:
            return None
        weights: NDArray[np.float64] = one_array(rows, self.weight).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return weights


def one_array(rows: pa.Table, name: str) -> pa.Array:
    """A column as one array, not in chunks."""
    chunks = rows.column(name).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else rows.column(name).combine_chunks()


def _names(labels: pa.Array) -> pa.Array:
    """Labels as texts, as in a card: a floating-point number becomes a whole number."""
    if pa.types.is_floating(labels.type) or pa.types.is_decimal(labels.type):
        labels = labels.cast(pa.int64())
    return labels.cast(pa.string())


@lru_cache(maxsize=2)
def _read_preprocessing(folder: str, sha256: str) -> FittedPipeline:
    """A fitted pipeline; each process reads it once."""
    with tempfile.TemporaryDirectory() as here:
        download_files(folder, Path(here) / sha256)
        return read_pipeline(Path(here) / sha256)


def examples_of(dataset: Dataset) -> Examples:
    """The :class:`Examples` of a dataset whose rows stay in place."""
    card, in_place = dataset.card, dataset.card.in_place
    assert in_place is not None
    folder = dataset.preprocessing_path
    return Examples(
        raw_columns=card.raw_columns,
        pipeline=_read_preprocessing(folder, str(card.preprocessing_sha256)) if folder else None,
        output=card.input.column,
        width=card.input.shape[0],
        label=in_place.label,
        label_names=card.label_names,
        weight=in_place.weight,
    )
