"""What becomes of raw columns before a network sees them: stages over Arrow columns, without Spark.

A stage is one small class: plain values that were fitted, and ``transform``, which adds columns to columns. Those that
have to be fitted are preceded by a learner, which says what to add up and to count of the training rows. Pipelines that
``pyspark.ml`` has fitted are read from their saved files, and give the same float32 numbers as Spark gives;
``docs/stacks.md`` names the exceptions. Nothing here starts Spark,
and nothing that is read is executed.
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
