"""The promises of :mod:`.test_strategies` for a network with two inputs that have names, one of them sequences."""

import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Card, Dataset
from sparkdl.data.card import LABEL_COLUMN
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.named_files import write_named_row_group
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.errors import ModelError
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing.input_rows import as_binary
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank

from .interruptions import assert_equal, continued, interrupt, states_of
from .test_strategies import EPOCHS, EXACT, ROWS, SIZE, STRATEGIES, Block, settings_for

SPECS = {
    "words": InputSpec(column="words", kind="sequence", shape=(9,), dtype="int32", vocabulary=41),
    "point": InputSpec(column="point", kind="vector", shape=(4,), dtype="float32"),
}
DEALT = [name for name in STRATEGIES if name not in ("ist, convolutions", "ist, all-reduce first and last")]


class Towers(nn.Module):
    """One tower for the words, one for the point, and what both say; in float64."""

    def __init__(self, vocabularies: dict[str, int], num_classes: int, blocks: int = 0) -> None:
        super().__init__()
        self.words, self.point = nn.Embedding(vocabularies["words"], 16), nn.Linear(4, 16)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.hidden, self.activation, self.out = nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, num_classes)
        self.double()

    def forward(self, words: torch.Tensor, words_mask: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
        there = words_mask.unsqueeze(-1).double()
        both = (self.words(words) * there).sum(1) / there.sum(1) + self.point(point.double())
        answer: torch.Tensor = self.out(self.activation(self.hidden(self.blocks(both))))
        return answer


def settings(name: str, **changes: object) -> Train:
    strategy = dict(STRATEGIES[name])
    if strategy["kind"] == "ist":
        strategy["layers"] = ["hidden"]
    options = {"blocks": 4} if strategy["kind"] == "resist" else {}
    own = {"model": Towers, "model_options": options, "strategy": strategy}
    return settings_for(name, **changes).model_copy(update=own)


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Each of four classes has ten words of its own and a cloud of points; rows have one to nine words."""
    folder, random = tmp_path_factory.mktemp("towers"), np.random.default_rng(0)
    groups, splits = {}, {}
    for split, sizes in {"train": [27, 27, 26, 26], "validation": [15, 15]}.items():
        (folder / split).mkdir()
        records, counts = [], np.zeros(4, int)
        for number, rows in enumerate(sizes):
            labels, lengths = random.integers(0, 4, rows), random.integers(1, 10, rows)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            words = random.integers(1, 11, offsets[-1]) + 10 * np.repeat(labels, lengths)
            points = (random.normal(size=(rows, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
            values = [
                as_binary(words.astype(np.int32), offsets),
                as_binary(points.reshape(-1), np.arange(rows + 1) * 4),
            ]
            structs = pa.StructArray.from_arrays([*values, pa.array(np.zeros(rows, np.int32))], [*SPECS, "_wrong"])
            table = pa.table({"inputs": structs, LABEL_COLUMN: labels})
            records.append(write_named_row_group(str(folder / split / file_name(number)), table, "inputs", SPECS))
            counts += np.bincount(labels, minlength=4)
        groups[split] = pa.Table.from_pylist(records)
        splits[split] = SplitCard(num_rows=sum(sizes), num_groups=len(sizes), class_counts=tuple(counts.tolist()))
    card = Card.create(
        version=5,
        inputs=SPECS,
        label_names=tuple("0123"),
        splits=splits,
        row_groups=write_row_groups_file(str(folder), groups),
        raw_columns={"words": "array<int>", "point": "vector"},
        preprocessing=False,
        settings={},
        source="none",
    )
    return Dataset(str(folder), card)


def train_with_all(towers: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, list[dict[str, float]]]:
    """Train with each strategy, whole and interrupted: histories by name."""
    histories = {}
    for name in DEALT:
        os.environ["SPARKDL_HOST"] = f"host {rank.rank}" if name.endswith("a host each") else "host"
        outcome = train_rank(Job(towers, settings(name), f"{folder}/{name}", backend, reference=SIZE), rank)
        histories[name] = outcome.history if outcome else []
        steps = settings(name, checkpoint_steps=1)
        job = Job(towers, steps, f"{folder}/{name}, interrupted", backend, reference=SIZE)
        interrupt(job, rank, at=14)
        if rank.rank == 0:
            shutil.copytree(job.folder, f"{folder}/{name}, begun")
        continued(job, rank)
    return histories


def continue_with_fewer(towers: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, list[float]]:
    """By strategy: how many rows of each epoch were answered correctly, all of them having been seen once."""
    correct = {}
    for name in DEALT:
        job = Job(towers, settings(name), f"{folder}/{name}, begun", backend, reference=SIZE)
        outcome = continued(job, rank)
        correct[name] = [each["train_accuracy"] * ROWS for each in outcome.history] if outcome else []
    return correct


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("named_strategies")


@pytest.fixture(scope="module")
def histories(towers: Dataset, folder: Path, backend: Backend) -> dict[str, list[dict[str, float]]]:
    train = partial(train_with_all, towers, str(folder / backend.name), backend)
    found: dict[str, list[dict[str, float]]] = run_local(train, SIZE, backend=backend)[0]
    return found


def test_every_strategy_learns_from_named_inputs_and_goes_on_to_the_last_bit(
    histories: dict[str, list[dict[str, float]]], folder: Path, backend: Backend
) -> None:
    for name in DEALT:
        assert len(histories[name]) == EPOCHS
        assert histories[name][-1]["validation_accuracy"] > 0.7, name
        if name in EXACT:
            whole, continued = folder / backend.name / name, folder / backend.name / f"{name}, interrupted"
            assert_equal(states_of(continued), states_of(whole))


def test_another_number_of_ranks_uses_every_row_of_named_inputs_once(
    histories: dict[str, list[dict[str, float]]], towers: Dataset, folder: Path, backend: Backend
) -> None:
    go_on = partial(continue_with_fewer, towers, str(folder / backend.name), backend)
    for name, correct in run_local(go_on, 2, backend=backend)[0].items():
        assert len(correct) == EPOCHS, name
        assert correct == pytest.approx([round(rows) for rows in correct], abs=1e-6)


def test_a_network_of_named_inputs_is_tried_with_each_strategy_before_anything_starts(towers: Dataset) -> None:
    for name in DEALT:
        check_model(towers, settings(name), ranks=SIZE)


def test_a_network_in_parts_takes_no_named_inputs_and_says_so(towers: Dataset) -> None:
    sharded = settings("ist").model_copy(update={"strategy": {"kind": "ist", "period": 4, "sharded": True}})
    with pytest.raises(ModelError, match="plain stack of layers, but the inputs words, point have names"):
        check_model(towers, sharded, ranks=SIZE)


def recommend(towers: Dataset, folder: str, backend: Backend, rank: Rank) -> list[dict[str, float]]:
    """Train DLRM with sparse gradients, whole and interrupted: the history."""
    options = {"model": "dlrm", "model_options": {"width": 8, "sparse": True}, "optimizer": "sparse_adam"}
    recipe = Train.model_validate({**options, "learning_rate": 0.05, "epochs": EPOCHS, "batch_size": 4})
    outcome = train_rank(Job(towers, recipe, f"{folder}/whole", backend, reference=SIZE), rank)
    steps = recipe.model_copy(update={"checkpoint_steps": 1})
    job = Job(towers, steps, f"{folder}/interrupted", backend, reference=SIZE)
    interrupt(job, rank, at=14)
    continued(job, rank)
    return outcome.history if outcome else []


def test_tables_with_sparse_gradients_learn_and_go_on_to_the_last_bit(
    towers: Dataset, tmp_path: Path, backend: Backend
) -> None:
    history = run_local(partial(recommend, towers, str(tmp_path), backend), SIZE, backend=backend)[0]
    assert history[-1]["train_loss"] < 0.8 * history[0]["train_loss"]
    assert_equal(states_of(tmp_path / "interrupted"), states_of(tmp_path / "whole"))
