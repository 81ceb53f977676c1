"""What saved preprocessing makes of rows, without Spark."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from sparkdl.data import Dataset
from sparkdl.preprocessing import Column, as_fitted, read_pipeline


def raw_columns(rows: DataFrame, names: list[str]) -> dict[str, Column]:
    """Columns as stages take them."""
    types = {name: rows.schema[name].dataType.simpleString() for name in names}
    collected = rows.select(*[f"`{name}`" for name in names]).collect()
    columns = {}
    for place, name in enumerate(names):
        values = [row[place] for row in collected]
        values = [value.toArray().tolist() if hasattr(value, "toArray") else value for value in values]
        columns[name] = as_fitted(pa.array(values), name, types[name])
    return columns


def made_again(dataset: Dataset, rows: DataFrame) -> Column:
    """What the dataset's preprocessing makes of raw rows."""
    assert dataset.preprocessing_path
    pipeline = read_pipeline(Path(dataset.preprocessing_path))
    return pipeline.transform(raw_columns(rows, list(dataset.raw_columns)), dataset.input.column)
