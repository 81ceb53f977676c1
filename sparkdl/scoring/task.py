"""What a Spark task does with the rows it is given. Runs in tasks, without any access to MLflow."""

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
"""The column that says why a row has no prediction."""
_SHOWN_ROWS = 3
"""Rows that an error names."""
_SHOWN_VALUES = 4
"""Values that tell which row it is, where no column was named for that."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ScoringTask:
    """Appends the predictions to Arrow batches; small enough to travel with every task."""

    files: tuple[tuple[str, str], ...]
    """The files of the model's folder: their names there, and among the files that Spark brought to the executor, where
    they hold a digest."""
    keep: tuple[str, ...]
    """The names of the first columns, which stay."""
    reads: tuple[tuple[str, int], ...]
    """The raw columns of the model, and which columns they are; or where Spark has preprocessed, the input alone."""
    refused: int | None
    """The column that says why the source or the preprocessing refuses a row; None if there is no such column."""
    preprocessed: bool
    """Whether Spark has preprocessed."""
    top_k: int
    batch_size: int
    threads: int
    features: Features | None = None
    """Of an estimator, the columns that become the model's only one."""
    asked: Asked = field(default_factory=Asked)
    """Which columns are added."""
    form: FormChoice = "original"
    """Which of the model's forms answers."""
    trusted: tuple[str, ...] = ()
    """The modules whose code may build a network that is not exported."""
    modules: tuple[tuple[str, ModuleSource], ...] = ()
    """Those of them, and of what they import, that executors may not have."""
    on_error: Literal["fail", "null"] = "fail"
    """What becomes of a row that cannot be scored."""
    key: str | None = None
    """The column that names a row in an error."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The columns to keep and the predictions, batch by batch; and where rows may fail, the column ``error``.

        Columns are called by their places: of two that have one name, Arrow keeps one.
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
        """The error that names the rows, in one line; tasks end with the first batch that has such rows."""
        bad = np.flatnonzero(reasons.is_valid())
        shown = [f"{self._name(batch, int(row), before)}: {reasons[int(row)]}" for row in bad[:_SHOWN_ROWS]]
        more = f"; and {len(bad) - len(shown):,} more" if len(bad) > len(shown) else ""
        advice = "" if self.key else ", name the column that tells rows apart in `key`"
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
    """Where the running task computes: on the GPU that Spark has given it, if PyTorch can use it, or else on the CPU.

    Raises :class:`~sparkdl.errors.ConfigError` where its process cannot see that GPU.
    """
    context = TaskContext.get()
    return device_of_task(context) if context and torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=2)  # a worker process outlives its task: the next one finds the model loaded
def _load(
    files: tuple[tuple[str, str], ...],
    preprocessed: bool,
    asked: Asked,
    device: str,
    trusted: tuple[str, ...],
    form: FormChoice,
    modules: object,
) -> tuple[RawInputs, Predictor]:
    from pyspark import SparkFiles  # which a client of Spark Connect, that only sends this here, need not have

    with TemporaryDirectory(prefix="sparkdl-model-") as folder:  # for as long as files are opened
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
