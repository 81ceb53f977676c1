"""Which models may teach, and what their answers are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from sparkdl.data import Dataset
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ConfigError, ModelError
from sparkdl.models import full_state
from sparkdl.settings import Train
from sparkdl.settings.teacher import Teacher
from sparkdl.training.checkpoint import save_best
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.ready_teacher import AnsweringTask, ready_teacher
from sparkdl.training.record import RunRecord, recipe_of
from sparkdl.training.replica import build_model


@pytest.fixture
def settings(tmp_path: Path) -> Train:
    return Train(run_dir=str(tmp_path / "runs"), teacher=Teacher(model="models:/large/1"))


@pytest.fixture
def teacher(tmp_path: Path, clouds: Dataset) -> Callable[..., Path]:
    """A folder with a network for the clouds, or for what is left when some keys of their card are others."""

    def folder(**changes: object) -> Path:
        dataset = replace(clouds, card=clouds.card.model_copy(update=changes))
        best = save_best(str(tmp_path), full_state(build_model(dataset, Train(seed=7))), step=1, epoch=0)
        made = tmp_path / "model"
        made.mkdir(exist_ok=True)
        write_model_folder(made, dataset, Train(), f"{tmp_path}/{best.name}")
        return made

    return folder


def test_a_teacher_answers_the_rows_of_each_row_group_once_by_the_classes_of_the_dataset(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    ready = ready_teacher(clouds, settings, teacher(label_names=("3", "1", "0", "2")))
    task = AnsweringTask(clouds, ready.answers, str(ready.folder), ready.order)
    numbers = [pa.RecordBatch.from_pydict({"id": [0, 1]}), pa.RecordBatch.from_pydict({"id": [2, 3]})]
    assert [batch.column(0).to_pylist() for batch in task(iter(numbers))] == [[0, 1, 2, 3]]
    assert [batch.column(0).to_pylist() for batch in task(iter(numbers))] == [[]]
    network = build_model(clouds, Train(seed=7)).eval()
    for batch in Loader(replace(clouds, answers=ready.answers), "train", batch_size=16).epoch(0):
        with torch.no_grad():
            theirs = network(batch.inputs)[:, [2, 1, 3, 0]].softmax(dim=1)
        assert batch.teacher is not None
        torch.testing.assert_close(batch.teacher.float().softmax(dim=1), theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label_names": ("0", "1", "2", "5")}, "does not know the class '3'"),
        ({"label_names": ("0", "1", "2", "3", "5")}, "tells the class '5', which .* has not"),
        ({"task": "multi_label"}, "was trained for multi_label, and .* for classification"),
    ],
)
def test_a_model_for_other_labels_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"train.teacher: models:/large/1 {says}"):
        ready_teacher(clouds, settings, teacher(**changes))


def test_a_model_that_reads_other_inputs_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, texts: Dataset, settings: Train
) -> None:
    with pytest.raises(ConfigError, match=r"reads vector 4 float32, and .* has vector 6 float32"):
        ready_teacher(texts, settings, teacher())


def test_a_model_whose_inputs_were_preprocessed_otherwise_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    folder = teacher()
    (folder / "preprocessing").mkdir()
    (folder / "preprocessing" / "stages.json").write_text("{}")
    card = folder / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"preprocessing": True}))
    with pytest.raises(ConfigError, match=r"other rows or settings of `prepare` have preprocessed"):
        ready_teacher(clouds, settings, folder)


def test_a_dataset_without_classes_has_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    card = clouds.card.model_copy(update={"task": "regression", "label_names": ()})
    with pytest.raises(ConfigError, match=r"train\.teacher is for classification and .*was prepared for regression"):
        ready_teacher(replace(clouds, card=card), settings, teacher())


def test_a_damaged_model_is_an_error_before_anything_starts(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    folder = teacher()
    (folder / "network.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="damaged"):
        ready_teacher(clouds, settings, folder)


def test_another_teacher_is_another_recipe_and_none_is_what_runs_from_before_had(
    clouds: Dataset, settings: Train
) -> None:
    record = RunRecord("abc", clouds.digest, recipe_of(settings), 1, 1)
    record.check(clouds, settings, "")
    softer = settings.model_copy(update={"teacher": Teacher(model="models:/large/1", temperature=8)})
    with pytest.raises(ConfigError, match=r"train\.teacher\.temperature was 4\.0 and is 8\.0"):
        record.check(clouds, softer, "")
    before = recipe_of(Train())
    del before["teacher"]
    record = replace(record, recipe=before)
    record.check(clouds, Train(), "")
    with pytest.raises(ConfigError, match=r"train\.teacher was None and is given"):
        record.check(clouds, settings, "")


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"temperature": -1}, {"weight": 0}, {"weight": 1.5}])
def test_a_temperature_or_a_weight_that_cannot_be_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"teacher\.{next(iter(wrong))}"):
        Train.model_validate({"teacher": {"model": "models:/large/1", **wrong}})
