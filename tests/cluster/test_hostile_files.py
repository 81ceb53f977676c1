"""What Spark itself would run when it reads a stranger's files: each attack is shown to work, and then to fail."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkValueError
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession

from sparkdl.data import open_source
from sparkdl.errors import DataError, ModelError
from sparkdl.scoring.dataframe import load_preprocessing
from sparkdl.settings import Source


def test_a_models_preprocessing_imports_no_module_that_it_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof, folder = tmp_path / "ran", tmp_path / "preprocessing"
    (tmp_path / "a_strangers_stages.py").write_text(f"open({str(proof)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = {"class": "pyspark.ml.pipeline.PipelineModel", "uid": "p", "timestamp": 0, "sparkVersion": "3.5.0"}
    values = {"language": "Python", "stageUids": ["stage"]}
    for place, metadata in {
        folder: pipeline | {"paramMap": values, "defaultParamMap": {}},
        folder / "stages" / "0_stage": pipeline | {"class": "a_strangers_stages.Stage", "paramMap": {}},
    }.items():
        (place / "metadata").mkdir(parents=True)
        (place / "metadata" / "part-00000").write_text(json.dumps(metadata))
    with pytest.raises(ModelError, match=r"'a_strangers_stages\.Stage', which could run any code"):
        load_preprocessing(spark, tmp_path)
    assert not proof.exists()
    with pytest.raises(AttributeError):
        PipelineModel.load(folder.as_uri())
    assert proof.exists()
    del sys.modules["a_strangers_stages"]


def test_a_raw_table_imports_no_type_of_a_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof, path = tmp_path / "ran", tmp_path / "rows.parquet"
    (tmp_path / "a_strangers_types.py").write_text(f"open({str(proof)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    kind = {"type": "udt", "pyClass": "a_strangers_types.Kind", "serializedClass": "", "sqlType": "double"}
    spark_schema = {"type": "struct", "fields": [{"name": "x", "type": kind, "nullable": True, "metadata": {}}]}
    schema = pa.schema([("x", pa.float64())], {"org.apache.spark.sql.parquet.row.metadata": json.dumps(spark_schema)})
    pq.write_table(pa.table({"x": [1.0]}, schema=schema), path)
    with pytest.raises(DataError, match=r"the Python class 'a_strangers_types\.Kind', which could run any code"):
        open_source(Source(format="parquet", path=str(path)), spark)
    assert not proof.exists()
    with pytest.raises(PySparkValueError):
        print(spark.read.parquet(str(path)).schema)
    assert proof.exists()
    del sys.modules["a_strangers_types"]
