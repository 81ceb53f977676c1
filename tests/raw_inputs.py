"""What scoring makes of rows before a network sees them, as its tasks do."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from sparkdl.data.model_card import ModelCard
from sparkdl.scoring.dataframe import rows_to_score
from sparkdl.scoring.raw_inputs import RawInputs


def raw_inputs(rows: DataFrame, card: ModelCard, folder: Path) -> list[tuple[Any, str | None]]:
    """Of each row its input, and why it is refused or None; read by tasks, without Spark's preprocessing."""
    given, read = rows_to_score(rows, card.raw_columns), RawInputs.open(folder, card).read
    kind, reads = "binary" if card.input.kind == "image" else "array<float>", given.reads

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            inputs, refused = read({name: batch.column(place) for name, place in reads.items()})
            reasons = pa.nulls(len(batch), pa.string()) if refused is None else refused
            made = inputs if kind == "binary" else inputs.cast(pa.list_(pa.float32()))
            yield pa.RecordBatch.from_arrays([made, reasons], ["input", "refused"])

    found = given.frame.mapInArrow(task, f"input {kind}, refused string").collect()
    return [(row.input, row.refused) for row in found]
