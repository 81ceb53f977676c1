"""The function that a Spark task runs to score its rows. Runs in tasks, without access to MLflow."""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyspark import TaskContext

from sparkdl.cluster.devices import device_of_task
from sparkdl.cluster.modules import ModuleSource, importable
from sparkdl.data.card import PREPROCESSING
from sparkdl.errors import DataError
from sparkdl.preprocessing.encoded_images import in_parts
from sparkdl.scoring.predictor import Asked, Predictor
from sparkdl.scoring.raw_inputs import Features, RawInputs, ReadRows
from sparkdl.scoring.rows import answer_inputs
from sparkdl.settings.compress import FormChoice

__all__ = ["ERROR", "ScoringTask", "scoring_device"]

ERROR = "error"
"""The column with the reason for which a row has no prediction."""
_SHOWN_ROWS = 3
"""The most rows that an error lists."""
_SHOWN_VALUES = 4
"""The most values by which an error identifies a row, if ``key`` is not set."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ScoringTask:
    """Appends predictions to Arrow batches. It is pickled into every task, so it is kept small."""

    files: tuple[tuple[str, str], ...]
    """The files of the model's folder: for each its name there, and its name among the files that Spark has shipped to
    the executor, which contains a digest."""
    keep: tuple[str, ...]
    """The names of the rows' own columns, which come first and are kept."""
    reads: tuple[tuple[str, int], ...]
    """The model's raw columns with their positions; if Spark has preprocessed the rows, only the model's input."""
    refused: int | None
    """The position of the column with the reason for which the source or the preprocessing refuses a row, or None."""
    preprocessed: bool
    """Whether Spark has already preprocessed the rows."""
    top_k: int
    batch_size: int
    threads: int
    features: Features | None = None
    """The columns of an estimator, which are concatenated to the model's only raw column."""
    asked: Asked = field(default_factory=Asked)
    """The columns that are added."""
    form: FormChoice = "original"
    """The form of the model that predicts."""
    trusted: tuple[str, ...] = ()
    """The modules whose code may build a network that could not be exported."""
    modules: tuple[tuple[str, ModuleSource], ...] = ()
    """The sources of these modules, and of those that they import, for executors that may not have them."""
    on_error: Literal["fail", "null"] = "fail"
    """Whether a row that cannot be scored fails the task, or has a null prediction."""
    key: str | None = None
    """The column that identifies a row in an error."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The columns to keep and the predictions, batch by batch; with ``on_error="null"`` also the column ``error``.

        Columns are named by their positions, because of two columns with the same name Arrow would keep one.
        """
        with importable(dict(self.modules)) if self.modules else nullcontext():
            yield from self._answered(batches)

    def _answered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        torch.set_num_threads(self.threads)
        raw, predictor = _load(
            self.files, self.preprocessed, self.asked, scoring_device(), self.trusted, self.form, self.modules
        )
        raw = raw if self.features is None else raw.behind(self.features)
        before = 0
        pixels = sum(math.prod(spec.shape) for spec in raw.card.specs if spec.kind == "image")
        for batch in in_parts(batches, [pixels]) if pixels else batches:
            inputs = raw.read({name: batch.column(place) for name, place in self.reads})
            if self.refused is not None and (said := batch.column(self.refused)).null_count < len(batch):
                inputs = ReadRows(inputs.column, said if inputs.refused is None else pc.coalesce(said, inputs.refused))
            answer, reasons = answer_inputs(predictor, inputs, top_k=self.top_k, batch_size=self.batch_size)
            if reasons is not None and self.on_error == "fail":
                raise self._failure(batch, reasons, before)
            if self.on_error == "null":
                answer = [*answer, pa.nulls(len(batch), pa.string()) if reasons is None else reasons]
            made = [*batch.columns[: len(self.keep)], *answer]
            yield pa.RecordBatch.from_arrays(made, names=[str(place) for place in range(len(made))])
            before += len(batch)

    def _failure(self, batch: pa.RecordBatch, reasons: pa.Array, before: int) -> DataError:
        """The error that lists the rows of this batch that cannot be scored, in one line."""
        bad = np.flatnonzero(reasons.is_valid())
        shown = [f"{self._name(batch, int(row), before)}: {reasons[int(row)]}" for row in bad[:_SHOWN_ROWS]]
        more = f"; and {len(bad) - len(shown):,} more" if len(bad) > len(shown) else ""
        advice = "" if self.key else ", set `key` to the column that identifies rows"
        return DataError(
            f"{len(bad):,} of {len(batch):,} rows cannot be scored: {'; '.join(shown)}{more}. Repair or drop "
            f"them{advice}, or set `on_error` to `null` to score the others"
        )

    def _name(self, batch: pa.RecordBatch, row: int, before: int) -> str:
        if self.key is not None:
            return f"{self.key} = {_short(batch.column(self.keep.index(self.key))[row].as_py())}"
        context = TaskContext.get()
        place = f"row {before + row} of partition {context.partitionId() if context else 0}"
        plain = [index for index in range(len(self.keep)) if not _is_long(batch.column(index).type)]
        values = [f"{self.keep[index]} = {_short(batch.column(index)[row].as_py())}" for index in plain]
        return f"{place} ({', '.join(values[:_SHOWN_VALUES])})" if values else place


def _is_long(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def scoring_device() -> str:
    """The device of the running task: the GPU that Spark has assigned to it, if PyTorch can use it, else the CPU.

    Raises :class:`~sparkdl.errors.ConfigError` if the task's process cannot see that GPU.
    """
    context = TaskContext.get()
    return device_of_task(context) if context and torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=2)  # a Python worker runs several tasks, which share the loaded model
def _load(
    files: tuple[tuple[str, str], ...],
    preprocessed: bool,
    asked: Asked,
    device: str,
    trusted: tuple[str, ...],
    form: FormChoice,
    modules: object,
) -> tuple[RawInputs, Predictor]:
    from pyspark import SparkFiles  # imported here: clients of Spark Connect, which only pickle this, lack it

    with TemporaryDirectory(prefix="sparkdl-model-") as folder:  # needed only while the files are read
        for name, shipped in files:
            if name == PREPROCESSING:
                with ZipFile(SparkFiles.get(shipped)) as packed:
                    packed.extractall(Path(folder, name))
            else:
                Path(folder, name).symlink_to(SparkFiles.get(shipped))
        predictor = Predictor.load(folder, asked, device=device, trusted=trusted, form=form)
        card = predictor.card
        raw = RawInputs(card.preprocessed(), None) if preprocessed else RawInputs.open(Path(folder), card)
        return raw, predictor
