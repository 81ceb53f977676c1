"""Files from strangers (configurations, dataset cards, checkpoints, models) are read, and nothing in them runs."""

import hashlib
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from sparkdl.config import load_settings
from sparkdl.data.card import Card, InputSpec
from sparkdl.data.card_parts import File, LabelsFile, SplitCard
from sparkdl.data.labels import read_labels
from sparkdl.errors import ConfigError, DatasetError, ModelError, RegistryError, SparkdlError
from sparkdl.models import build
from sparkdl.preprocessing import check_preprocessing
from sparkdl.settings import Train
from sparkdl.tracking import download
from sparkdl.training.checkpoints.checkpoint import Shard, load_shard, load_weights
from sparkdl.training.recipes.recipe import build_optimizer


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """The file that is there if a stranger's code ran."""
    return tmp_path / "ran"


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{proof}']]",
        "!!python/object/apply:os.system ['touch {proof}']",
        "!!python/object/new:os.system ['touch {proof}']",
        "!!python/name:os.system",
        "!!python/module:antigravity",
    ],
)
def test_a_configuration_makes_no_objects(value: str, proof: Path, tmp_path: Path) -> None:
    path, value = tmp_path / "pipeline.yaml", value.format(proof=proof)
    path.write_text(f"train: {{model_options: {{x: {value}}}}}")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_settings(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="cannot read the value"):
        load_settings(path, [f"train.model={value}"])
    assert not proof.exists()
    assert "antigravity" not in sys.modules


def test_reading_a_configuration_imports_nothing_that_it_names(
    proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_strangers.py").write_text(f"open({str(proof)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    names = ", ".join(f"{key}: 'a_strangers:thing'" for key in ("model", "loss", "optimizer"))
    (tmp_path / "pipeline.yaml").write_text(f"train: {{{names}}}")
    assert load_settings(tmp_path / "pipeline.yaml").train.model == "a_strangers:thing"
    assert "a_strangers" not in sys.modules
    assert not proof.exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("os:system", {"command": "touch {proof}"}),
        ("subprocess:Popen", {"args": ["touch", "{proof}"]}),
        ("pathlib:Path.touch", {"self": "{proof}"}),
        ("builtins:exec", {"source": "open('{proof}', 'w')"}),
        ("torch:load", {"f": "{proof}", "weights_only": False}),
    ],
)
def test_a_name_in_a_configuration_calls_nothing_but_what_makes_a_network_or_an_optimizer(
    name: str, options: dict[str, Any], proof: Path
) -> None:
    options = json.loads(json.dumps(options).replace("{proof}", str(proof)))
    with pytest.raises((ModelError, ConfigError)):
        build(name, input_shape=(4,), num_classes=2, options=options)
    with pytest.raises(ConfigError):
        build_optimizer(Train(optimizer=name, optimizer_options=options), nn.Linear(4, 2))
    assert not proof.exists()


@pytest.mark.parametrize(
    "option",
    [
        "spark.jars",
        "spark.jars.packages",
        "spark.driver.extraJavaOptions",
        "spark.executor.extraClassPath",
        "spark.submit.pyFiles",
        "spark.pyspark.driver.python",
        "spark.python.daemon.module",
        "spark.executorEnv.PYTHONPATH",
        "spark.driver.resource.gpu.discoveryScript",
        "spark.hadoop.net.topology.script.file.name",
        "spark.sql.hive.metastore.jars",
        "spark.master",
        "spark.driver.bindAddress",
        "spark.plugins",
        "spark.extraListeners",
        "spark.sql.extensions",
        "spark.sql.catalog.stranger",
        "spark.serializer",
        "spark.shuffle.manager",
        "spark.ui.filters",
        "spark.eventLog.dir",
        "spark.hadoop.fs.s3a.endpoint",
        "driver.memory",
    ],
)
def test_a_configuration_makes_only_harmless_settings_of_spark(option: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(json.dumps({"cluster": {"options": {option: "http://stranger.example/code"}}}))
    told = rf"pipeline\.yaml: cluster\.options: '{option}' .* use .* spark-submit --conf {option}="
    with pytest.raises(ConfigError, match=told):
        load_settings(path)
    with pytest.raises(ConfigError, match=told):
        load_settings(path, [f"cluster.options.{option}=mine"])


def test_what_says_how_much_how_long_or_how_to_read_may_stand_in_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    spark = {"spark.driver.memory": "2g", "spark.sql.files.maxPartitionBytes": 1, "spark.ui.enabled": True}
    reader = {"header": True, "sep": ";", "pathGlobFilter": "*.csv"}
    source = {"format": "csv", "path": "/rows", "options": reader}
    path.write_text(json.dumps({"cluster": {"options": spark}, "score": {"source": source}}))
    settings = load_settings(path)
    assert settings.cluster.options == spark
    assert settings.score.source is not None and settings.score.source.options == reader


@pytest.mark.parametrize("section", ["prepare", "score"])
def test_a_configuration_hands_no_settings_of_hadoop_to_a_reader(section: str, tmp_path: Path) -> None:
    option, path = "parquet.crypto.factory.class", tmp_path / "pipeline.yaml"
    source = {"format": "parquet", "path": "/rows", "options": {option: "a.strangers.Factory"}}
    path.write_text(json.dumps({section: {"source": source, "output": "/out"}}))
    with pytest.raises(ConfigError, match=rf"{section}\.source\.options: '{option}' is a setting of Hadoop"):
        load_settings(path)


def test_a_user_may_make_any_setting_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("score: {source: {format: parquet, path: /rows}}")
    settings = load_settings(path, ["cluster.options.spark.plugins=my.Plugin", "score.source.options.fs.s3a.path=x"])
    assert settings.cluster.options == {"spark.plugins": "my.Plugin"}
    assert settings.score.source is not None and settings.score.source.options == {"fs.s3a.path": "x"}


def signed(tree: dict[str, Any]) -> str:
    """A card with the digest that a stranger can compute as well."""
    content = {key: value for key, value in tree.items() if key not in ("digest", "preprocessing_sha256")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(tree | {"digest": hashlib.sha256(text.encode()).hexdigest()})


def a_card() -> dict[str, Any]:
    file = File(path="train/a.parquet", rows=2, bytes=9, sha256="0" * 64, crc32=1, inputs_at=1, labels_at=2)
    card = Card.create(
        version=2,
        input=InputSpec(column="x", kind="vector", shape=(3,), dtype="float32"),
        label_names=("a", "b"),
        splits={"train": SplitCard(files=(file,), class_counts=(1, 1))},
        raw_columns={"x": "array<float>"},
        preprocessing=False,
        settings={},
        source="2-a",
    )
    return dict(json.loads(card.to_json()))


def at(tree: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    node: Any = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return tree


FIRST = ("splits", "train", "files", 0)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("../../etc/passwd", (*FIRST, "path")),
        ("/etc/passwd", (*FIRST, "path")),
        ("train/../../secret", (*FIRST, "path")),
        ("train/..", (*FIRST, "path")),
        ("train/a.parquet\n", (*FIRST, "path")),
        ("train\\..\\a", (*FIRST, "path")),
        ("http://stranger.example/a", (*FIRST, "path")),
        ("test/a.parquet", (*FIRST, "path")),
        (["train/a.parquet"], (*FIRST, "path")),
        ("2; import os", (*FIRST, "rows")),
        (-1, (*FIRST, "rows")),
        ({"__reduce__": "os.system"}, (*FIRST, "sha256")),
        ("object", ("input", "dtype")),
        ("pickle", ("input", "kind")),
        ("evil", ("preprocessing",)),
        ("code", ("loader_module",)),
        ({"..": "x"}, ("splits",)),
        (4, ("version",)),
    ],
)
def test_a_card_is_data_of_known_types_and_stays_in_its_folder(value: Any, path: tuple[str | int, ...]) -> None:
    assert Card.from_json(signed(a_card())).label_names == ("a", "b")
    with pytest.raises(DatasetError, match=r"is not a valid dataset card|has format 4"):
        Card.from_json(signed(at(a_card(), value, *path)))


def test_a_file_of_labels_unpickles_no_types(proof: Path, tmp_path: Path) -> None:
    marked = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Hostile(proof)),
    }
    schema = pa.schema([pa.field("name", pa.string(), metadata=marked), pa.field("count", pa.int64())])
    pq.write_table(pa.table({"name": ["a"], "count": [1]}, schema=schema), tmp_path / "labels.parquet")
    content = (tmp_path / "labels.parquet").read_bytes()
    expected = LabelsFile(classes=1, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # some versions of pyarrow say that they do not unpickle it
        read_labels(str(tmp_path), expected).column("name").to_pylist()
    assert not proof.exists()


def save_stage(
    folder: Path, name: Any, *, stages: tuple[tuple[str, Callable[[Path], None]], ...] = (), **values: Any
) -> None:
    """A stage as Spark keeps it."""
    (folder / "metadata").mkdir(parents=True)
    values |= {"stageUids": [uid for uid, _ in stages]} if stages else {}
    (folder / "metadata" / "part-00000").write_text(
        json.dumps({"class": name, "uid": "uid", "paramMap": values}) + "\n"
    )
    for number, (uid, save) in enumerate(stages):
        save(folder / "stages" / f"{number}_{uid}")


def stage(name: Any, **values: Any) -> Callable[[Path], None]:
    return lambda folder: save_stage(folder, name, **values)


PIPELINE, FEATURE = "org.apache.spark.ml.PipelineModel", "org.apache.spark.ml.feature"
SCALER = stage(f"{FEATURE}.StandardScalerModel")


def test_preprocessing_of_known_stages_may_be_loaded(tmp_path: Path) -> None:
    def columns(text: str) -> Callable[[Path], None]:
        return stage(f"{FEATURE}.SQLTransformer", statement=f"SELECT *, {text} FROM __THIS__")

    started, joined = columns("concat(array('^'), _a_words) AS _a_started"), columns("concat(_a, _a_pairs) AS _a_terms")
    renamed = columns("`my column` AS `features`")
    ours = stage("sparkdl.data.text.LogCounts")
    nested = stage("pyspark.ml.pipeline.PipelineModel", language="Python", stages=(("a", ours), ("b", renamed)))
    save_stage(
        tmp_path, PIPELINE, stages=(("scaler", SCALER), ("started", started), ("joined", joined), ("nested", nested))
    )
    check_preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (
            stage("a_strangers.module.Stage"),
            "has a stage of the class 'a_strangers.module.Stage', which could run any code",
        ),
        (stage("pyspark.ml.tuning.CrossValidatorModel"), "could run any code"),
        (stage(f"{FEATURE}.RFormulaModel"), "could run any code"),
        (stage(f"{FEATURE}.evil.Thing"), "could run any code"),
        (stage("pyspark.ml.feature.SparkContext"), "could run any code"),
        (stage("sparkdl.data.text.os"), "could run any code"),
        (stage(["org.apache.spark.ml.PipelineModel"]), "not what Spark writes"),
        (
            stage(f"{FEATURE}.SQLTransformer", statement="SELECT TRANSFORM(a) USING 'sh' AS b FROM __THIS__"),
            "any program",
        ),
        (
            stage(f"{FEATURE}.SQLTransformer", statement="SELECT *, concat(reflect(a, b), c) AS d FROM __THIS__"),
            "any program",
        ),
        (stage(PIPELINE, stages=(("deep", stage("a_strangers.Stage")),)), "'a_strangers.Stage', which could"),
    ],
)
def test_preprocessing_of_other_stages_is_refused_before_it_is_loaded(
    last: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    save_stage(tmp_path, PIPELINE, stages=(("scaler", SCALER), ("last", last)))
    with pytest.raises(ModelError, match=says):
        check_preprocessing(tmp_path)


def test_a_stage_that_its_owner_trusts_may_be_loaded(tmp_path: Path) -> None:
    save_stage(tmp_path, PIPELINE, stages=(("own", stage("my_package.stages.Upper")),))
    with pytest.raises(ModelError, match=r"name it in `score\.trusted_stages`"):
        check_preprocessing(tmp_path, trusted=["my_package.stages.Lower"])
    check_preprocessing(tmp_path, trusted=["my_package.stages.Upper"])


def test_preprocessing_that_spark_could_read_in_another_way_is_refused(tmp_path: Path) -> None:
    def another(folder: Path) -> None:
        SCALER(folder)
        (folder / "metadata" / "part-00000.gz").write_bytes(b"")

    def twice(folder: Path) -> None:
        SCALER(folder)
        text = '{"class": "a_strangers.Stage", "class": "org.apache.spark.ml.feature.DCT", "paramMap": {}}'
        (folder / "metadata" / "part-00000").write_text(text)

    for number, (uid, save) in enumerate(
        [("another", another), ("twice", twice), ("x/../../elsewhere", SCALER), ("a,b", SCALER)]
    ):
        save_stage(tmp_path / str(number), PIPELINE, stages=((uid, save),))
        with pytest.raises(ModelError, match=r"what Spark writes|that Spark never writes"):
            check_preprocessing(tmp_path / str(number))


def test_a_checkpoint_unpickles_nothing_but_tensors_and_plain_values(proof: Path, tmp_path: Path) -> None:
    for name, content in {"new.pt": {"model": Hostile(proof)}, "old.pt": Hostile(proof)}.items():
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=name == "new.pt")
        with pytest.raises((SparkdlError, pickle.UnpicklingError)):
            load_weights(str(tmp_path / name))
        saved = (tmp_path / name).read_bytes()
        shard = Shard(name=name, sha256=hashlib.sha256(saved).hexdigest(), bytes=len(saved))
        with pytest.raises((SparkdlError, pickle.UnpicklingError)):
            load_shard(str(tmp_path), shard)
    assert not proof.exists()


def test_a_registered_model_that_names_its_own_loader_is_refused(
    proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_strangers_loader.py").write_text(f"open({str(proof)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    flavour = {"loader_module": "a_strangers_loader", "data": "data", "code": "code"}
    (tmp_path / "MLmodel").write_text(json.dumps({"flavors": {"python_function": flavour}}))
    with pytest.raises(RegistryError, match="was not made by sparkdl"):
        download(str(tmp_path))
    assert not proof.exists()
