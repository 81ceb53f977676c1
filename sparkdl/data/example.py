"""A few raw rows that are kept with a dataset: what a registered model shows as its input example."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.storage import join, locate

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["read_example", "write_example"]

ROWS = 3
FILE_NAME = "example.parquet"


def write_example(rows: "DataFrame", raw_columns: dict[str, str], folder: str) -> None:
    """Keep the columns that scoring needs of a few rows; vectors become arrays. Runs on the driver."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as sf

    columns = [
        (vector_to_array(sf.col(f"`{name}`")) if kind == "vector" else sf.col(f"`{name}`")).alias(name)
        for name, kind in raw_columns.items()
    ]
    found = [row.asDict() for row in rows.select(*columns).limit(ROWS).collect()]
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(found), content)
    filesystem, path = locate(join(folder, FILE_NAME))
    filesystem.pipe_file(path, content.getvalue().to_pybytes())


def read_example(folder: str) -> "pd.DataFrame":
    """The rows that :func:`write_example` kept. Runs on the driver."""
    filesystem, path = locate(join(folder, FILE_NAME))
    frame: pd.DataFrame = pq.read_table(pa.BufferReader(filesystem.cat_file(path))).to_pandas()
    return frame.map(lambda value: value.tolist() if hasattr(value, "tolist") else value)
