"""Inputs that have names: from columns of a table to the arguments of a network, and back to predictions."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import mlflow
import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from torch import nn

import sparkdl
from sparkdl import Cluster, Dataset, Prepare, Split, Tracking, Train, TrainedModel
from sparkdl.data import Loader
from sparkdl.errors import ConfigError, DataError, DatasetError, ModelError

CLASSES, ROWS = 3, 240
ARGUMENTS = ["image", "numbers", "place", "events", "events_mask", "series", "series_mask", "bag"]
INPUTS = {
    "image": {"column": "photo", "image_shape": [4, 4, 3]},
    "numbers": {"columns": ["x", "y"], "stages": [{"kind": "standardise", "columns": ["x", "y"]}]},
    "place": {"column": "place", "kind": "ids", "stages": [{"kind": "index", "columns": ["place"]}]},
    "events": {"column": "events", "kind": "sequence", "max_length": 12, "on_long_rows": "cut"},
    "series": {"column": "series", "kind": "sequence"},
    "bag": {"column": "place", "kind": "sparse", "stages": [{"kind": "count_text", "columns": ["place"]}]},
}
SCHEMA = "number int, label int, x double, y float, place string, photo binary, events array<int>, series array<float>"


class Net(nn.Module):
    """Takes all of :data:`INPUTS`; the mean of what each says, over what a row has."""

    def __init__(
        self, input_shapes: dict[str, tuple[int, ...]], vocabularies: dict[str, int], num_classes: int
    ) -> None:
        super().__init__()
        self.image = nn.Linear(int(np.prod(input_shapes["image"])), 8)
        self.numbers = nn.Linear(*input_shapes["numbers"], 8)
        self.place, self.events = (nn.Embedding(vocabularies[name], 8) for name in ("place", "events"))
        self.bag = nn.Linear(*input_shapes["bag"], 8)
        self.out = nn.Linear(8, num_classes)

    def forward(
        self,
        image: torch.Tensor,
        numbers: torch.Tensor,
        place: torch.Tensor,
        events: torch.Tensor,
        events_mask: torch.Tensor,
        series: torch.Tensor,
        series_mask: torch.Tensor,
        bag: torch.Tensor,
    ) -> torch.Tensor:
        found = self.image(image.flatten(1)) + self.numbers(numbers) + self.place(place)[:, 0] + self.bag(bag)
        found = found + mean(self.events(events), events_mask) + mean(series.unsqueeze(-1), series_mask) / ROWS
        logits: torch.Tensor = self.out(torch.relu(found))
        return logits


def mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    there = mask.unsqueeze(-1).float()
    return (values * there).sum(1) / there.sum(1)


def table() -> list[tuple[object, ...]]:
    random = np.random.default_rng(0)
    return [
        (
            number,
            number % CLASSES,
            float(random.random() + number % CLASSES),
            float(random.random()),
            ["north", "south", "east"][number % CLASSES],
            bytearray(random.integers(0, 256, 48, dtype=np.uint8).tobytes()),
            [int(one) for one in random.integers(0, 9, 1 + number % 15) + number % CLASSES],
            [float(number)] * (1 + number % 4),
        )
        for number in range(ROWS)
    ]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(table(), SCHEMA).cache()


@pytest.fixture(scope="module")
def dataset(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("named")
    chosen = {"inputs": INPUTS, "rows_per_group": 32, "split": Split(fractions={"validation": 0.2})}
    return sparkdl.prepare(rows, Prepare.model_validate({"output": str(folder / "dataset"), **chosen}))


@pytest.fixture(scope="module")
def trained(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory, empty_store: Path, spark: SparkSession
) -> TrainedModel:
    folder = tmp_path_factory.mktemp("runs")
    copy(empty_store, folder / "mlflow.db")
    return sparkdl.train(
        dataset,
        Train(model=Net, epochs=4, batch_size=8, optimizer="adam", learning_rate=0.02, run_dir=str(folder / "runs")),
        cluster=Cluster(num_ranks=2),
        tracking=Tracking(uri=f"sqlite:///{folder / 'mlflow.db'}"),
        spark=spark,
    )


def test_each_row_comes_to_the_network_as_its_columns_say(dataset: Dataset) -> None:
    """A series repeats the number of its row, by which the other inputs are found in the table."""
    raw = {row[0]: row for row in table()}
    assert list(dataset.card.inputs) == list(INPUTS)
    categories = {"place": {}, "bag": {}}  # type: dict[str, dict[object, object]]
    seen = []
    for split in dataset.splits:
        for batch in Loader(dataset, split, batch_size=8).epoch(0):
            inputs = batch.inputs
            assert isinstance(inputs, dict)
            assert list(inputs) == [
                "image",
                "numbers",
                "place",
                "events",
                "events_mask",
                "series",
                "series_mask",
                "bag",
            ]
            for place, label in enumerate(batch.labels.tolist()):
                series = inputs["series"][place][inputs["series_mask"][place]].tolist()
                row = raw[int(series[0])]
                seen.append(row[0])
                assert series == row[7] and label == row[1]
                assert inputs["events"][place][inputs["events_mask"][place]].tolist() == row[6][:12]  # type: ignore[index]
                assert bytes(inputs["image"][place].numpy()) == row[5]
                categories["place"].setdefault(row[4], inputs["place"][place].item())
                categories["bag"].setdefault(row[4], inputs["bag"][place].argmax().item())
                assert categories["place"][row[4]] == inputs["place"][place].item()
                assert categories["bag"][row[4]] == inputs["bag"][place].argmax().item()
            assert not inputs["events"][~inputs["events_mask"]].any()
    assert sorted(seen) == list(range(ROWS))
    assert sorted(categories["place"].values()) == [0, 1, 2]


def test_the_card_says_how_many_ids_there_are_and_how_long_rows_are(dataset: Dataset) -> None:
    inputs, random = dataset.card.inputs, [row[6][:12] for row in table()]  # type: ignore[index]
    assert inputs["events"].shape == (12,) and inputs["events"].vocabulary == 1 + max(max(each) for each in random)
    assert inputs["place"].vocabulary == 4  # one more stands for places that no training row has
    assert inputs["series"].shape == (4,) and inputs["series"].vocabulary is None
    assert len(inputs["image"].mean or ()) == 3
    assert dataset.card.version == 5
    with pytest.raises(DatasetError, match=r"named inputs \(image, numbers"):
        _ = dataset.input


def test_the_same_rows_in_another_order_are_the_same_dataset(dataset: Dataset, rows: DataFrame, tmp_path: Path) -> None:
    settings = Prepare.model_validate(dataset.card.settings | {"output": str(tmp_path / "again")})
    again = sparkdl.prepare(rows.orderBy("x").repartition(3), settings)
    assert again.digest == dataset.digest
    assert sparkdl.prepare(rows, settings).digest == dataset.digest
    dataset.verify()


def test_a_model_of_named_inputs_is_trained_exported_and_scores_in_spark_and_in_pandas(
    trained: TrainedModel, rows: DataFrame, use_store: Callable[[str], None]
) -> None:
    assert trained.metrics["validation_accuracy"] > 0.9
    scored = sparkdl.score(rows, trained).orderBy("number").toPandas()
    assert (scored.prediction == scored.label).mean() > 0.9
    use_store(str(trained.tracking.uri))
    model = mlflow.pyfunc.load_model(trained.model_uri)
    served = model.predict(rows.orderBy("number").limit(20).toPandas().drop(columns="label"))
    assert served.prediction.tolist() == scored.prediction.tolist()[:20]
    assert np.allclose(served.probability, scored.probability[:20], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"events": [99]}, r"input 'events' has ids that are not whole numbers from 0 to 10"),
        ({"events": [-1]}, "input 'events' has ids"),
        ({"events": []}, "input 'events' is null or has no elements"),
        ({"events": None}, "input 'events' is null or has no elements"),
        ({"series": [1.0] * 9 + [float("nan")]}, "input 'series' has values that are NaN"),
        ({"photo": bytearray(7)}, "column 'photo'"),
        ({"photo": None}, "column 'photo' is not an image"),
        ({"x": None}, "input 'numbers' has values that are NaN"),
        ({"place": None}, "column 'place' is null"),
        ({"place": "west", "events": [0] * 50}, None),
    ],
)
def test_a_row_that_cannot_be_scored_says_which_input_is_wrong(
    trained: TrainedModel, spark: SparkSession, change: dict[str, object], error: str | None
) -> None:
    good = dict(zip([column.split()[0] for column in SCHEMA.split(", ")], table()[0], strict=True))
    both = spark.createDataFrame([tuple((good | change).values()), tuple(good.values())], SCHEMA)
    first, second = sparkdl.score(both, trained, on_error="null").collect()
    assert second["error"] is None and second["prediction"] is not None
    if error is None:
        assert first["error"] is None and first["prediction"] is not None
    else:
        assert error in first["error"] and first["prediction"] is None


@pytest.mark.parametrize(
    ("inputs", "column", "value", "error"),
    [
        ({"events": {"column": "events", "kind": "sequence"}}, "events", [], "1 rows without elements"),
        ({"events": {"column": "events", "kind": "sequence"}}, "events", [3, -2], "1 rows with ids"),
        ({"events": {"column": "events", "kind": "sequence"}}, "events", None, "1 rows that are null"),
        (
            {"events": {"column": "events", "kind": "sequence", "max_length": 15}},
            "events",
            [1] * 16,
            "1 rows of more than 15 elements",
        ),
        (
            {"events": {"column": "events", "kind": "sequence", "vocabulary": 20}},
            "events",
            [20],
            "1 rows with ids that are no whole numbers from 0 to 19",
        ),
        ({"x": {"column": "x", "kind": "ids"}}, "x", 0.5, "input 'x'"),
    ],
)
def test_a_bad_row_of_a_named_input_is_named_or_skipped(
    spark: SparkSession, tmp_path: Path, inputs: dict[str, object], column: str, value: object, error: str
) -> None:
    names = [each.split()[0] for each in SCHEMA.split(", ")]
    table_rows = [dict(zip(names, row, strict=True)) for row in table()[:40]]
    listed = [row | {"x": float(place), "part": "train"} for place, row in enumerate(table_rows)]
    listed[7][column] = value
    rows = spark.createDataFrame([tuple(row.values()) for row in listed], f"{SCHEMA}, part string")
    settings = {"output": str(tmp_path / "it"), "inputs": inputs, "split": {"column": "part", "fractions": {}}}
    with pytest.raises(DataError, match=rf"{error}.*number = 7"):
        sparkdl.prepare(rows, Prepare.model_validate(settings))
    dataset = sparkdl.prepare(rows, Prepare.model_validate(settings | {"on_bad_rows": "skip"}))
    assert dataset.rows("train") == 39


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"a": {"column": "nothing"}}, r"column 'nothing'"),
        ({"a": {"column": "events", "kind": "tokens", "vocabulary": 300}}, "inputs.a: .*array<int>.* made of text"),
        ({"a": {"column": "place", "kind": "sequence"}}, "inputs.a: .*a sequence is an array"),
        ({"a": {"column": "place"}}, "inputs.a: .*cannot be learned from"),
        (
            {"a": {"column": "series", "kind": "sequence"}, "b": {"column": "series"}},
            "inputs.b: another input reads column 'series' in another way",
        ),
    ],
)
def test_a_column_that_does_not_fit_its_input_is_an_error_that_names_the_input(
    rows: DataFrame, tmp_path: Path, inputs: dict[str, object], error: str
) -> None:
    with pytest.raises(DataError, match=error):
        sparkdl.prepare(rows, Prepare.model_validate({"output": str(tmp_path / "it"), "inputs": inputs}))


class Other(nn.Module):
    def __init__(self, num_classes: int, places: int = 4) -> None:
        super().__init__()
        self.place = nn.Embedding(places, num_classes)

    def forward(self, place: torch.Tensor, number: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.place(place)[:, 0]
        return found


class OnlyPlace(Other):
    def forward(self, place: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(place, place)


class TooSmall(Other):
    def forward(self, place: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(place, place)


@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        (Other, {}, r"needs 'number': its forward\(\) takes place, number, but the dataset has image, numbers, place"),
        (OnlyPlace, {}, r"takes no 'image', 'numbers', .*its forward\(\) takes place, but the dataset has"),
        (TooSmall, {"places": 3}, "failed on two rows .*index out of range"),
        ("mlp", {}, "takes a single input, but the dataset has the named inputs image, numbers"),
    ],
)
def test_a_network_that_does_not_take_the_inputs_is_found_before_anything_starts(
    dataset: Dataset, tmp_path: Path, model: object, options: dict[str, object], error: str
) -> None:
    settings = Train(model=model, model_options=options, run_dir=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=error):
        sparkdl.train(dataset, settings, tracking=Tracking(uri=f"sqlite:///{tmp_path / 'none.db'}"))
    assert not list(tmp_path.glob("*.db"))


def test_settings_of_inputs_that_do_not_go_together_are_refused() -> None:
    def settings(**keys: object) -> Prepare:
        return Prepare.model_validate({"output": "x", **keys})

    one = {"column": "a"}
    for keys, error in [
        ({"inputs": {"a": one}, "features": ["b"]}, "`inputs` have their own settings, .*`features`"),
        ({"inputs": {"a": one}, "in_place": True}, "`in_place`"),
        ({"inputs": {"lambda": one}}, "'lambda', which cannot be the name of an argument"),
        ({"inputs": {"label": one}}, "'label', which is already the name of the labels"),
        ({"inputs": {"a": {"column": "a", "kind": "sequence"}, "a_mask": one}}, "the mask of 'a'"),
        ({"inputs": {"a": {"column": "label"}}}, "the label or the weight"),
        ({"inputs": {"a": {"columns": ["a", "b"], "kind": "sequence"}}}, "is of one `column`"),
        ({"inputs": {"a": {"column": "a", "kind": "tokens"}}}, "`tokens` need either `tokenizer`"),
        ({"inputs": {"a": {"column": "a", "max_length": 3}}}, "`max_length` is for"),
        ({"inputs": {"a": {"column": "a", "kind": "sequence", "on_long_rows": "cut"}}}, "set that, too"),
        (
            {"inputs": {"a": {"column": "a", "knd": "ids"}}},
            r"unknown key 'inputs\.a\.knd'; did you mean 'inputs\.a\.kind'",
        ),
        ({"inputs": {"a": {"column": 3}}}, r"inputs\.a\.column: input should be a valid string"),
        ({"inputs": {"a": {}}}, "give either `column` or `columns`"),
    ]:
        with pytest.raises(ConfigError, match=error):
            settings(**keys)
    assert "inputs" not in json.loads(settings().model_dump_json())  # so that digests are what they were
