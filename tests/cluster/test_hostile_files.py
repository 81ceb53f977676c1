"""What Spark itself would run when it reads a stranger's files: each attack is shown to work, and then to fail."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkValueError
from pyspark.ml import PipelineModel
from pyspark.ml.feature import SQLTransformer
from pyspark.sql import SparkSession

from sparkdl import main
from sparkdl.data import open_source
from sparkdl.data.sql import condition, identifier
from sparkdl.errors import DataError, ModelError
from sparkdl.scoring.by_spark import load_preprocessing
from sparkdl.settings import Source


@pytest.mark.parametrize(
    ("log", "part", "table"),
    [
        ("_delta_log/00000000000000000000.json", "", "`format: delta` and `path: {folder}`"),
        ("_delta_log/00000000000000000000.json", "day=1/hour=2", "`format: delta` and `path: {folder}`"),
        (".hoodie/hoodie.properties", "", "`format: hudi` and `path: {folder}`"),
        ("metadata/v1.metadata.json", "data", "`format: iceberg` and `path: catalog.database.table`"),
    ],
)
def test_files_of_a_table_with_versions_are_not_read_as_its_rows(
    log: str, part: str, table: str, spark: SparkSession, tmp_path: Path
) -> None:
    rows = tmp_path / "table" / part
    rows.mkdir(parents=True)
    (tmp_path / "table" / log).parent.mkdir()
    (tmp_path / "table" / log).touch()
    pq.write_table(pa.table({"x": [1.0]}), rows / "part-0.parquet")
    with pytest.raises(DataError, match=re.escape(table.format(folder=tmp_path / "table"))):
        open_source(Source(format="parquet", path=str(rows)), spark)


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


JAVA = "('java.lang.System', 'setProperty', 'sparkdl.proof', 'ran')"


@pytest.fixture
def ran(spark: SparkSession) -> Iterator[Callable[[], bool]]:
    """Whether the JVM was called since this was last asked."""
    assert spark._jvm is not None
    system = spark._jvm.java.lang.System
    yield lambda: system.clearProperty("sparkdl.proof") == "ran"
    system.clearProperty("sparkdl.proof")


@pytest.fixture
def score(spark: SparkSession, tmp_path: Path) -> Callable[[str], None]:
    """The command ``sparkdl score`` with this condition, on three rows; there is no such model."""
    spark.range(3).write.parquet(f"{tmp_path}/rows")
    configuration = tmp_path / "pipeline.yaml"
    settings = {"source": {"format": "parquet", "path": f"{tmp_path}/rows"}, "output": f"{tmp_path}/out"}

    def score(where: str) -> None:
        model = str(tmp_path / "no-model")
        configuration.write_text(json.dumps({"score": {**settings, "model": model, "where": where}}))
        main(["score", str(configuration)])

    return score


@pytest.mark.parametrize("name", ["ref${x}lect", "`ref${x}lect`", "ReFlect", "java_method"])
def test_a_condition_calls_no_java_however_it_is_written(
    name: str,
    spark: SparkSession,
    ran: Callable[[], bool],
    score: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        score(f"{name}{JAVA} is not null or id > 0")
    assert not ran()
    assert re.search(r"score\.where: a condition must not use the function '\w+'", capsys.readouterr().err)
    spark.range(1).where(f"{name}{JAVA} is null").collect()
    assert ran()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("java_method('java.lang.System', 'exit', 3) is null", "the function 'java_method'"),
        ("IDENTIFIER('ref' || 'lect')('java.lang.System', 'exit', 3) is null", "ExpressionWithUnresolvedIdentifier"),
        ("id in (select count(*) from json.`/etc`)", "InSubquery"),
        ("exists (select 1)", "Exists"),
        ("(select max(id) from range(3)) = id", "ScalarSubquery"),
        ("default.lower('A') = 'a'", "the function 'default.lower'"),
        ("a_function_of_the_session(id)", "the function 'a_function_of_the_session'"),
        ("input_file_name() = ''", "the function 'input_file_name'"),
        ("id > 0 and size(filter(array(id), x -> reflect('a', x) is null)) = 1", "the function"),
        ("sum(id) over () > 3", "WindowExpression"),
        ("id >", "is not a SQL condition"),
    ],
)
def test_a_condition_may_use_nothing_but_operators_and_plain_functions(
    where: str, says: str, score: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        score(where)
    assert re.search(rf"score\.where: .*{re.escape(says)}", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id between 1 and 2 and id not in (2)", [1]),
        ("`id` % 2 = 0 and not (id <=> null or id is null)", [0, 2]),
        ("concat('row ', cast(id as string)) like 'row 1' or string(id) rlike '^2'", [1, 2]),
        ("case when id = 1 then true else length(trim(concat_ws('', 'a', 'b'))) = id end", [1, 2]),
        ("date_add(date '2024-02-28', int(id)) > to_date('2024-02-28') and array_contains(array(1, 5), id)", [1]),
        ("id * 2 + 1 > abs(-3) and coalesce(null, id) = round(id / 1)", [2]),
    ],
)
def test_an_ordinary_condition_picks_its_rows(where: str, rows: list[int], spark: SparkSession) -> None:
    found = spark.range(3).where(condition(where, key="score.where")).orderBy("id").collect()
    assert [row.id for row in found] == rows


def test_a_column_cannot_bring_sql_in_its_name(spark: SparkSession, ran: Callable[[], bool], tmp_path: Path) -> None:
    hostile, statement = "${spark.sql.hostile}", "SELECT *, `${spark.sql.hostile}` AS `features` FROM __THIS__"
    with pytest.raises(DataError, match=r"because Spark replaces \$\{\.\.\.\} in names; rename it"):
        identifier(hostile)
    stage = SQLTransformer(statement=statement)
    PipelineModel([stage]).save(f"{tmp_path}/preprocessing")
    with pytest.raises(ModelError, match="which could start any program"):
        load_preprocessing(spark, tmp_path)
    spark.conf.set("spark.sql.hostile", f"id`, reflect{JAVA} AS made, `id")
    stage.transform(spark.range(1)).collect()
    spark.conf.unset("spark.sql.hostile")
    assert ran()
