"""What a Spark task does with the rows it is given. Runs in tasks, without any access to MLflow."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import torch
from pyspark import SparkFiles

from sparkdl.models import load_network
from sparkdl.scoring.card import ModelCard
from sparkdl.scoring.predictor import COLUMNS, Predictor

__all__ = ["ScoringTask"]


@dataclass(frozen=True)
class ScoringTask:
    """Appends the predictions to Arrow batches; small enough to travel with every task."""

    file: str
    """The network's file among the files that Spark brought to the executor; its name holds its digest."""
    card: str
    """The model's card, JSON."""
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
        predictor = _load(self.file, self.card)
        for batch in batches:
            answer = predictor.answer(batch.column(self.input), top_k=self.top_k, batch_size=self.batch_size)
            yield pa.RecordBatch.from_arrays([*batch.columns[: len(self.keep)], *answer], names=[*self.keep, *COLUMNS])


@lru_cache(maxsize=2)  # a worker process outlives its task: the next one finds the network loaded
def _load(file: str, card: str) -> Predictor:
    return Predictor(load_network(SparkFiles.get(file)), ModelCard.model_validate_json(card))
