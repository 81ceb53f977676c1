"""A pipeline of ``pyspark.ml`` that the user has made: fitted, applied and described. Runs on the driver."""

import json
from typing import TYPE_CHECKING, Any

from sparkdl.errors import DataError
from sparkdl.program import pickled_by_value
from sparkdl.storage import spark_url

if TYPE_CHECKING:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.sql import DataFrame

__all__ = ["apply_preprocessing", "describe_pipeline", "fit_pipeline"]


def fit_pipeline(pipeline: "Pipeline", training: "DataFrame", folder: str) -> "PipelineModel":
    """Fit a pipeline on the training rows, and keep what was fitted in a folder."""
    with pickled_by_value():
        model = pipeline.fit(training)
    model.write().save(spark_url(folder))
    return model


def apply_preprocessing(rows: "DataFrame", model: "PipelineModel", column: str, *, sparse: bool = False) -> "DataFrame":
    """Raw rows with the input column added. Runs on the driver, lazily; the work is Spark's.

    The column is an array of float32; with ``sparse``, what :func:`sparkdl.data.sparse_rows.decode_sparse` reads.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as sf

    with pickled_by_value():
        transformed = model.transform(rows)
    if column not in transformed.columns:
        raise DataError(f"the pipeline makes no column {column!r}; it makes {', '.join(transformed.columns)}")
    if sparse:
        return transformed.withColumn(column, sf.unwrap_udt(sf.col(column)))
    return transformed.withColumn(column, vector_to_array(sf.col(column), "float32"))


def describe_pipeline(pipeline: "Pipeline") -> list[Any]:
    """A pipeline's stages and parameters as JSON, without the random names that Spark gives its stages."""
    stages = pipeline.getStages()
    description = [
        [type(stage).__name__, {param.name: value for param, value in stage.extractParamMap().items()}]
        for stage in stages
    ]
    text = json.dumps(description, sort_keys=True, default=str)
    for index, stage in enumerate(stages):
        text = text.replace(stage.uid, f"stage{index}")
    return list(json.loads(text))
