"""Which models may teach, and what their answers are."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from benchmarks.extreme.made_up import Shape, write_dataset
from sparkdl.data import Dataset, SparseBatch
from sparkdl.data.card_parts import LabelScale
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ConfigError, ModelError
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.ensemble_card import EnsembleCard
from sparkdl.models import Reference, TracedNetwork, full_state
from sparkdl.settings import Train
from sparkdl.settings.teacher import Teacher
from sparkdl.training.checkpoints.checkpoint import save_best
from sparkdl.training.checkpoints.record import RunRecord, recipe_of
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model
from sparkdl.training.tasks import create_task
from sparkdl.training.teachers.asking import AnsweringTask
from sparkdl.training.teachers.ready_teacher import ready_teacher

from ...extreme.ensembles import CLASSES, INPUT, WIDTH, write


@pytest.fixture
def settings(tmp_path: Path) -> Train:
    return Train(run_dir=str(tmp_path / "runs"), teacher=Teacher(model="models:/large/1"))


@pytest.fixture(scope="module")
def traced(clouds: Dataset) -> TracedNetwork | Reference | None:
    """The trace of a network with four outputs, which all such teachers share: it takes a second."""
    return tried_model(clouds, Train())[1]


@pytest.fixture
def teacher(tmp_path: Path, clouds: Dataset, traced: TracedNetwork | Reference | None) -> Callable[..., Path]:
    """A folder with a network for the clouds, or for what is left when some keys of their card are others."""

    def folder(**changes: object) -> Path:
        dataset = replace(clouds, card=clouds.card.model_copy(update=changes))
        best = save_best(str(tmp_path), full_state(build_model(dataset, Train(seed=7))), step=1, epoch=0)
        made = tmp_path / "model"
        made.mkdir(exist_ok=True)
        alike = traced if len(dataset.label_names) == len(clouds.label_names) else None
        write_model_folder(made, dataset, Train(), f"{tmp_path}/{best.name}", traced=alike)
        return made

    return folder


def test_a_teacher_answers_the_rows_of_each_row_group_once_by_the_classes_of_the_dataset(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    ready = ready_teacher(clouds, settings, [teacher(label_names=("3", "1", "0", "2"))])
    task = AnsweringTask(clouds, ready.answers, ready.members)
    numbers = [pa.RecordBatch.from_pydict({"id": [0, 1]}), pa.RecordBatch.from_pydict({"id": [2, 3]})]
    assert [batch.column(0).to_pylist() for batch in task(iter(numbers))] == [[0, 1, 2, 3]]
    assert [batch.column(0).to_pylist() for batch in task(iter(numbers))] == [[]]
    network = build_model(clouds, Train(seed=7)).eval()
    for batch in Loader(replace(clouds, answers=ready.answers), "train", batch_size=16).epoch(0):
        with torch.no_grad():
            theirs = network(batch.inputs)[:, [2, 1, 3, 0]].softmax(dim=1)
        assert batch.teacher is not None
        torch.testing.assert_close(batch.teacher.float().softmax(dim=1), theirs, rtol=2e-3, atol=2e-3)


def test_several_teachers_answer_with_the_mean_of_their_logits_each_by_its_own_order(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train, tmp_path: Path
) -> None:
    copy = shutil.copytree(teacher(label_names=("3", "1", "0", "2")), tmp_path / "copy")
    several = settings.model_copy(update={"teacher": Teacher(model=["models:/large/1", "models:/large/2"])})
    ready = ready_teacher(clouds, several, [copy, teacher()])
    assert ready.answers.folder != ready_teacher(clouds, settings, [copy]).answers.folder
    task = AnsweringTask(clouds, ready.answers, ready.members)
    list(task(iter([pa.RecordBatch.from_pydict({"id": [0, 1, 2, 3]})])))
    network = build_model(clouds, Train(seed=7)).eval()
    for batch in Loader(replace(clouds, answers=ready.answers), "train", batch_size=16).epoch(0):
        with torch.no_grad():
            logits = network(batch.inputs)
        mean = (logits[:, [2, 1, 3, 0]] + logits) / 2
        assert batch.teacher is not None
        torch.testing.assert_close(batch.teacher.float().softmax(1), mean.softmax(1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label_names": ("0", "1", "2", "5")}, "does not know the class '3'"),
        ({"label_names": ("0", "1", "2", "3", "5")}, "predicts the class '5', which .* does not have"),
        ({"task": "multi_label"}, "was trained for multi_label, and .* for classification"),
    ],
)
def test_a_model_for_other_labels_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"train.teacher: models:/large/1 {says}"):
        ready_teacher(clouds, settings, [teacher(**changes)])


def test_a_model_that_reads_other_inputs_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, texts: Dataset, settings: Train
) -> None:
    with pytest.raises(ConfigError, match=r"reads vector 4 float32, and .* has vector 6 float32"):
        ready_teacher(texts, settings, [teacher()])


def test_a_model_whose_inputs_were_preprocessed_otherwise_is_no_teacher(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    folder = teacher()
    (folder / "preprocessing").mkdir()
    (folder / "preprocessing" / "stages.json").write_text("{}")
    card = folder / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"preprocessing": True}))
    with pytest.raises(ConfigError, match=r"other rows or settings of `prepare` have preprocessed"):
        ready_teacher(clouds, settings, [folder])


def test_a_dataset_of_rankings_has_no_teacher(teacher: Callable[..., Path], clouds: Dataset, settings: Train) -> None:
    card = clouds.card.model_copy(update={"task": "ranking", "label_names": ()})
    with pytest.raises(ConfigError, match=r"train\.teacher is for classification, .*was prepared for ranking"):
        ready_teacher(replace(clouds, card=card), settings, [teacher()])


def test_a_teacher_of_numbers_answers_in_standard_deviations_of_the_datasets_own_labels(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    scales = {name: LabelScale(mean=mean, std=2.0) for name, mean in (("theirs", 10.0), ("ours", 12.0))}
    numbers = {"task": "regression", "label_names": (), "label_scale": scales["ours"]}
    dataset = replace(clouds, card=clouds.card.model_copy(update=numbers))
    ready = ready_teacher(dataset, settings, [teacher(**{**numbers, "label_scale": scales["theirs"]})])
    task = AnsweringTask(dataset, ready.answers, ready.members)
    list(task(iter([pa.RecordBatch.from_pydict({"id": [0, 1, 2, 3]})])))
    network = build_model(dataset, Train(seed=7)).eval()
    learned = create_task(dataset.card)
    for batch in Loader(replace(dataset, answers=ready.answers), "train", batch_size=16).epoch(0):
        assert batch.teacher is not None
        with torch.no_grad():
            theirs = network(batch.inputs) - 1  # of a mean that is one deviation below
        torch.testing.assert_close(batch.teacher.float(), theirs, rtol=2e-3, atol=2e-3)
        for temperature in (1.0, 4.0):  # which squared is what the loss multiplies by
            apart = temperature**2 * learned.divergence(theirs + 0.5, batch.teacher.float(), temperature)
            torch.testing.assert_close(apart, torch.full_like(apart, 0.25), rtol=2e-2, atol=2e-2)


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    """The folder of an ensemble of fifty features and thirty classes."""
    folder = tmp_path / "ensemble"
    write(folder)
    card = EnsembleCard.load(folder)
    described = {"input": INPUT.model_dump(), "label_names": [], "labels": card.labels.model_dump()}
    (folder / "card.json").write_text(json.dumps({**described, "raw_columns": {}, "preprocessing": False}))
    return folder


@pytest.fixture
def sparse(tmp_path: Path) -> Dataset:
    """Sparse rows for a network that tells classes, in another order than the ensemble's."""
    made = write_dataset(tmp_path / "dataset", Shape(rows=200, features=WIDTH, classes=CLASSES))
    names = {"labels": None, "label_names": tuple(f"class {CLASSES - 1 - number}" for number in range(CLASSES))}
    return replace(made, card=made.card.model_copy(update=names))


def test_an_ensemble_teaches_the_likeliest_of_its_classes(
    ensemble: Path, sparse: Dataset, settings: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.training.teachers.ready_teacher.KEPT", 5)
    ready = ready_teacher(sparse, settings, [ensemble])
    task = AnsweringTask(sparse, ready.answers, ready.members)
    list(task(iter([pa.RecordBatch.from_pydict({"id": [*range(len(sparse.row_groups("train")))]})])))
    expected = Ensemble.open(ensemble)
    for batch in Loader(replace(sparse, answers=ready.answers), "train", batch_size=16).epoch(0):
        assert isinstance(batch.inputs, torch.Tensor) and batch.teacher is not None
        row, column = batch.inputs.nonzero(as_tuple=True)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), row.bincount(minlength=len(batch.labels)).cumsum(0)])
        some = SparseBatch(column, batch.inputs[row, column], ends, torch.empty(0), torch.zeros(len(ends)))
        found = expected.top_k(some, expected.logits(some), 5)
        taught = batch.teacher.float().topk(5)
        torch.testing.assert_close(taught.values, found.scores - found.scores[:, :1], rtol=2e-3, atol=2e-3)
        assert (taught.indices == CLASSES - 1 - found.classes).float().mean() > 0.95  # float16 has equal ones


def test_an_ensemble_teaches_no_dataset_of_other_rows_or_classes(
    ensemble: Path, sparse: Dataset, clouds: Dataset, settings: Train
) -> None:
    with pytest.raises(ConfigError, match=r"prepare\.sparse: true` and `prepare\.task: classification`"):
        ready_teacher(clouds, settings, [ensemble])
    fewer = replace(sparse, card=sparse.card.model_copy(update={"label_names": sparse.label_names[1:]}))
    with pytest.raises(ConfigError, match=r"predicts the class 'class 29', which .* does not have"):
        ready_teacher(fewer, settings, [ensemble])
    two = settings.model_copy(update={"teacher": Teacher(model=["models:/large/1", "models:/large/2"])})
    with pytest.raises(ConfigError, match="an ensemble for very many classes teaches alone"):
        ready_teacher(sparse, two, [ensemble, ensemble])


def test_a_damaged_model_is_an_error_before_anything_starts(
    teacher: Callable[..., Path], clouds: Dataset, settings: Train
) -> None:
    folder = teacher()
    (folder / "network.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="damaged"):
        ready_teacher(clouds, settings, [folder])


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
