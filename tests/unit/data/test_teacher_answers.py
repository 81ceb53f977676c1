"""The answers of a teacher: beside the rows that they are for, whole, and the ones that were written."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkdl.data import Dataset
from sparkdl.data.reading.loader import Loader, read_row_group
from sparkdl.data.reading.shards import Phase
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.errors import DatasetError

from .conftest import IMAGES, VECTORS

SIZES = [20, 21, 20, 20, 21]


@pytest.fixture
def answers(tmp_path: Path) -> TeacherAnswers:
    """To row i the answer (i, -i), in datasets whose labels are the numbers of their rows."""
    found = TeacherAnswers(str(tmp_path / "teacher"), 2)
    for number, size in enumerate(SIZES):
        rows = np.arange(size, dtype=np.float32) + sum(SIZES[:number])
        found.write(number, np.stack([rows, -rows], axis=1))
    return found


@pytest.mark.parametrize("kind", [VECTORS, IMAGES], ids=lambda spec: spec.kind)
def test_each_row_is_read_with_its_own_answer_in_any_order_and_by_any_number_of_ranks(
    make_dataset: Callable[..., Dataset], answers: TeacherAnswers, kind: object
) -> None:
    dataset = replace(make_dataset(SIZES, input=kind), answers=answers)
    for size, after in ((1, ()), (3, ()), (2, (Phase(3, 4, 5),))):
        rows = 0
        for rank in range(size):
            for batch in Loader(dataset, "train", batch_size=7, rank=rank, size=size).epoch(1, after=after):
                assert batch.teacher is not None and batch.teacher.dtype == torch.float16
                assert torch.equal(batch.teacher[:, 0].long(), batch.labels)
                assert torch.equal(batch.teacher[:, 1].long(), -batch.labels)
                rows += len(batch.labels)
        assert rows == sum(SIZES) - 3 * 4 * 5 * len(after)


def test_a_row_group_is_read_in_the_order_of_its_file(make_dataset: Callable[..., Dataset]) -> None:
    batches = list(read_row_group(make_dataset(SIZES), "train", 1, batch_size=8))
    assert [len(batch.labels) for batch in batches] == [8, 8, 5]
    assert torch.cat([batch.labels for batch in batches]).tolist() == list(range(20, 41))


def test_what_float16_has_not_is_its_largest_number(tmp_path: Path) -> None:
    answers = TeacherAnswers(str(tmp_path), 2)
    answers.write(0, np.array([[-np.inf, 1e6]], np.float32))
    assert answers.read(0, slice(None)).tolist() == [[-65504.0, 65504.0]]


def test_answers_that_were_altered_cut_off_or_removed_are_an_error_that_names_their_file(
    answers: TeacherAnswers,
) -> None:
    path = Path(answers.folder) / "part-000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    for damaged in (bytes(content), bytes(content[:-9]), b""):
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"part-000001\.safetensors was altered\. Remove .*teacher"):
            answers.read(1, slice(None))
    path.unlink()
    with pytest.raises(DatasetError, match=r"part-000001\.safetensors is missing"):
        answers.read(1, slice(None))


def test_of_very_many_classes_the_likeliest_are_kept_and_all_others_have_no_probability(
    make_dataset: Callable[..., Dataset], tmp_path: Path
) -> None:
    answers = TeacherAnswers(str(tmp_path / "teacher"), 1000, kept=2)
    for number, size in enumerate(SIZES):
        rows = np.arange(size) + sum(SIZES[:number])
        answers.write(number, np.tile(np.float32([0.0, -1.0]), (size, 1)), np.stack([rows, 999 - rows], axis=1))
    dataset = replace(make_dataset(SIZES), answers=answers)
    for batch in Loader(dataset, "train", batch_size=7).epoch(1):
        assert batch.teacher is not None and batch.teacher.shape == (len(batch.labels), 1000)
        probabilities = batch.teacher.float().softmax(dim=1)
        assert torch.equal(probabilities.argmax(dim=1), batch.labels)
        assert torch.equal((probabilities > 0).sum(dim=1), torch.full_like(batch.labels, 2))
        likeliest = probabilities.gather(1, batch.labels.long()[:, None])
        torch.testing.assert_close(likeliest, torch.full_like(likeliest, 1 / (1 + np.exp(-1))))


@pytest.mark.parametrize("classes", [[[0, 1000]], [[-1, 0]]])
def test_a_class_that_there_is_not_is_an_altered_file(tmp_path: Path, classes: list[list[int]]) -> None:
    answers = TeacherAnswers(str(tmp_path), 1000, kept=2)
    answers.write(0, np.zeros((1, 2), np.float32), np.array(classes))
    with pytest.raises(DatasetError, match="was altered"):
        answers.read(0, slice(None))
    answers.write(0, np.zeros((1, 2), np.float32), np.array([[0, 999]]))
    with pytest.raises(DatasetError, match="was altered"):
        replace(answers, kept=None).read(0, slice(None))
