"""What a fitted ``pyspark.ml`` pipeline does to rows, without Spark: its saved files become stages over Arrow columns.

A stage is one small class: plain values that were fitted, and ``transform``, which adds columns to columns. The same
rows give the same float32 numbers as Spark gives; ``docs/stacks.md`` names the exceptions. Nothing here starts Spark,
and nothing that is read is executed.
"""

from sparkdl.preprocessing.fitted_pipeline import FittedPipeline, read_pipeline
from sparkdl.preprocessing.raw_rows import as_fitted
from sparkdl.preprocessing.saved import check_preprocessing
from sparkdl.preprocessing.values import Column, SparseVectors, as_floats, as_structs

__all__ = [
    "Column",
    "FittedPipeline",
    "SparseVectors",
    "as_fitted",
    "as_floats",
    "as_structs",
    "check_preprocessing",
    "read_pipeline",
]
