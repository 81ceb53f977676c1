"""What a Spark task does with the rows it is given. Runs in tasks, without any access to MLflow."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import torch
from pyspark import SparkFiles

from sparkdl.scoring.predictor import COLUMNS, Predictor

__all__ = ["ScoringTask"]


@dataclass(frozen=True)
class ScoringTask:
    """Appends the predictions to Arrow batches; small enough to travel with every task."""

    files: tuple[tuple[str, str], ...]
    """The files of the model's folder: their names there, and among the files that Spark brought to the executor, where
    they hold a digest."""
    input: int
    """Which column is the network's input."""
    keep: tuple[str, ...]
    """The names of the first columns, which stay."""
    top_k: int
    batch_size: int
    threads: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The columns to keep and the predictions, batch by batch."""
        torch.set_num_threads(self.threads)
        predictor = _load(self.files)
        for batch in batches:
            answer = predictor.answer(batch.column(self.input), top_k=self.top_k, batch_size=self.batch_size)
            yield pa.RecordBatch.from_arrays([*batch.columns[: len(self.keep)], *answer], names=[*self.keep, *COLUMNS])


@lru_cache(maxsize=2)  # a worker process outlives its task: the next one finds the model loaded
def _load(files: tuple[tuple[str, str], ...]) -> Predictor:
    with TemporaryDirectory(prefix="sparkdl-model-") as folder:  # for as long as files are opened
        for name, shipped in files:
            Path(folder, name).symlink_to(SparkFiles.get(shipped))
        return Predictor.load(folder)
