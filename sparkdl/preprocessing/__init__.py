"""Preprocessing of raw columns: stages that transform Arrow columns, without Spark.

A stage is a small class with fitted values and a method ``transform``, which adds columns. A stage that has to be
fitted begins as a learner, which defines the sums and counts that it needs from the training rows. Pipelines fitted by
``pyspark.ml`` are read from their saved files, and give the same float32 numbers as in Spark; ``docs/stacks.md`` names
the exceptions. Nothing here starts Spark, and no file that is read is executed.
"""

from sparkdl.preprocessing.fitted_pipeline import FittedPipeline, read_pipeline
from sparkdl.preprocessing.raw_rows import as_fitted
from sparkdl.preprocessing.saved import check_preprocessing
from sparkdl.preprocessing.stages_file import STAGES_FILE
from sparkdl.preprocessing.unfitted_pipeline import UnfittedPipeline
from sparkdl.preprocessing.values import Column, SparseVectors, as_floats, as_matrix, as_structs

__all__ = [
    "STAGES_FILE",
    "Column",
    "FittedPipeline",
    "SparseVectors",
    "UnfittedPipeline",
    "as_fitted",
    "as_floats",
    "as_matrix",
    "as_structs",
    "check_preprocessing",
    "read_pipeline",
]
