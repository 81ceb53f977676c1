"""Smaller networks for Fashion-MNIST, made from a larger one: a student beside one without a teacher, a pruned one.

The larger network is the ``cnn`` of :mod:`sparkdl.models`, trained on a third of the images. The student is one of
fewer channels, with less than a tenth of its multiplications, which has labels of an eighth as many images; it learns
without a teacher, from the large network, and from that and two more of its kind, which began with other weights.
Students of a seed begin with the same weights and see the same rows. The pruned network is the large one with half of
its channels and neurons.
"""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pyspark.sql import SparkSession
from torch import nn

import sparkdl
from benchmarks.batches import Outcome, Training
from benchmarks.images import RAW, fashion_mnist, session
from benchmarks.report import Report, Target
from benchmarks.turns import take_turns
from sparkdl.cluster import run_ranks
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.settings import Train
from sparkdl.settings.teacher import Teacher
from sparkdl.tracking import download
from sparkdl.training.network_to_train import build_model
from sparkdl.training.teachers.ready_teacher import ready_teacher

__all__ = ["multiplications", "run"]

AT_A_TIME = 2
"""Trainings of students, each on one rank with one thread."""
PART, VALIDATION = 1 / 3, 0.1
"""Of the training rows of Fashion-MNIST those that the large network has, and of these those that are held out."""
FEW, FEW_VALIDATION = 0.08, 0.5
"""The same for students."""
LARGE: dict[str, Any] = {"model": "cnn", "batch_size": 64, "learning_rate": 0.002, "weight_decay": 0.01}
ENSEMBLE = 3
"""Large networks that teach together."""
LARGE_EPOCHS, STUDENT_EPOCHS, PRUNED_EPOCHS = 8, 30, 3
STUDENT: dict[str, Any] = {"channels": [10, 18], "hidden": 32}
TEMPERATURES, WEIGHTS = (2.0, 4.0), (0.5, 0.9)
ROWS, ROUNDS = 10_000, 5


@dataclass(frozen=True)
class Setting:
    """Where things are."""

    spark: SparkSession
    dataset: Dataset
    few: Dataset
    """What students have of it."""
    folder: str
    tracking: sparkdl.Tracking

    def train(self, **changes: Any) -> sparkdl.TrainedModel:
        """A network of the large kind, registered, on two ranks."""
        settings = Train.model_validate({**LARGE, "run_dir": f"{self.folder}/runs", **changes})
        cluster = sparkdl.Cluster(num_ranks=2)
        return sparkdl.train(self.dataset, settings, cluster=cluster, tracking=self.tracking, spark=self.spark)


def run(*, seeds: int = 5) -> list[Report]:
    """Train the large network, then students, then prune it. Runs on the driver."""
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        dataset, few = (
            fashion_mnist(spark, f"{folder}/{part}", fractions={"validation": validation}, num_ranks=2, part=part)
            for part, validation in ((PART, VALIDATION), (FEW, FEW_VALIDATION))
        )
        tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool", register_as="large")
        setting = Setting(spark, dataset, few, folder, tracking)
        large = [setting.train(epochs=LARGE_EPOCHS, seed=seed) for seed in range(ENSEMBLE)]
        return [_students(setting, large, seeds), _pruned(setting, large[0])]


def multiplications(network: nn.Module, rows: torch.Tensor) -> int:
    """Of one row, in convolutions and linear layers."""
    found: list[int] = []

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        assert isinstance(layer.weight, torch.Tensor)
        places = outputs[0].numel() // layer.weight.shape[0]
        found.append(layer.weight.numel() * places * len(outputs))

    hooks = [
        layer.register_forward_hook(count) for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        network.eval()(rows)
    for hook in hooks:
        hook.remove()
    return sum(found) // len(rows)


def _students(setting: Setting, large: Sequence[sparkdl.TrainedModel], seeds: int) -> Report:
    spark, dataset = setting.spark, setting.few
    alone = Train.model_validate(
        {**LARGE, "epochs": STUDENT_EPOCHS, "model_options": STUDENT, "run_dir": f"{setting.folder}/runs"}
    )

    def taught(teachers: Sequence[sparkdl.TrainedModel], choice: Mapping[str, float]) -> tuple[Dataset, Train]:
        uris = [each.model_uri for each in teachers]
        settings = alone.model_copy(update={"teacher": Teacher.model_validate({"model": uris, **choice})})
        ready = ready_teacher(dataset, settings, [download(uri, setting.tracking) for uri in uris])
        return ready.answered(dataset, spark), settings

    def ended(rows: Dataset, settings: Train, *, test: bool) -> Outcome:
        found = run_ranks(Training(rows, settings, test=test), 1, spark=spark, backend=TorchBackend())[0]
        assert found
        return found

    def of_seeds(rows: Dataset, settings: Train, pool: ThreadPoolExecutor) -> list[Outcome]:
        of_each = [settings.model_copy(update={"seed": seed}) for seed in range(1, 1 + seeds)]
        return list(pool.map(lambda each: ended(rows, each, test=True), of_each))

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        choices = [{"temperature": one, "weight": other} for one in TEMPERATURES for other in WEIGHTS]
        tried = [taught(large[:1], choice) for choice in choices]
        validated = list(pool.map(lambda each: ended(*each, test=False).validation, tried))
        best = max(range(len(choices)), key=validated.__getitem__)
        outcomes = {
            "without": of_seeds(dataset, alone, pool),
            "with": of_seeds(*tried[best], pool),
            "with all": of_seeds(*taught(large, choices[best]), pool),
        }
    tests = {name: [100 * (each.test or 0.0) for each in found] for name, found in outcomes.items()}
    spread = max(max(tests[name]) - min(tests[name]) for name in ("without", "with"))
    rows = torch.zeros(2, *dataset.input.shape, dtype=torch.uint8)
    counts = [multiplications(build_model(dataset, each), rows) for each in (Train.model_validate(LARGE), alone)]
    chosen = choices[best]
    return Report(
        title=f"students: {dataset.rows('train'):,} images of Fashion-MNIST, {counts[1] / counts[0]:.1%} of the"
        " multiplications",
        columns=["network", "multiplications", "test accuracy, %"],
        rows=[
            [f"large, {len(large)} of them", counts[0], _told([100 * each.metrics["test_accuracy"] for each in large])],
            ["student without a teacher", counts[1], _told(tests["without"])],
            ["student with the first large one as its teacher", counts[1], _told(tests["with"])],
            [f"student with all {len(large)} as its teacher", counts[1], _told(tests["with all"])],
        ],
        targets=[
            Target(
                f"points ahead by the teacher, over the spread of {seeds} seeds ({spread:.2f})",
                median(tests["with"]) - median(tests["without"]),
                spread,
            )
        ],
        note=f"Medians of {seeds} seeds, with the least and the most, of {STUDENT_EPOCHS} epochs. The large networks"
        f" have seen {setting.dataset.rows('train'):,} images. Temperature {chosen['temperature']:g} and weight"
        f" {chosen['weight']:g} are the best of {len(choices)} by {dataset.rows('validation'):,} validation rows; test"
        " rows are looked at once.",
    )


def _pruned(setting: Setting, large: sparkdl.TrainedModel) -> Report:
    """The large network and what is left of it, scored in turn."""
    pruned = setting.train(
        epochs=PRUNED_EPOCHS, learning_rate=0.001, start_from=large.model_uri, pruning={"kind": "structured"}
    )
    source = sparkdl.Source(format="idx", path=str(RAW))
    raw = sparkdl.open_source(source, setting.spark).where("split = 'test'").limit(ROWS).coalesce(1).cache()
    count = raw.count()
    models = {"large": large, "pruned by half": pruned}
    speeds = take_turns({name: sparkdl.score(raw, each) for name, each in models.items()}, count, ROUNDS)
    ratio = median(ours / theirs for ours, theirs in zip(speeds["pruned by half"], speeds["large"], strict=True))
    sizes = {name: _bytes(download(each.model_uri, setting.tracking)) for name, each in models.items()}
    accuracy = {name: 100 * each.metrics["test_accuracy"] for name, each in models.items()}
    return Report(
        title="students: half of the channels and neurons leave, one slot",
        columns=["network", "rows/s", "ratio", "bytes", "test accuracy, %"],
        rows=[
            [name, median(speeds[name]), 1.0 if name == "large" else ratio, sizes[name], f"{accuracy[name]:.2f}"]
            for name in models
        ],
        targets=[
            Target("rows/s of the pruned network over the whole one's", ratio, 1.6),
            Target("points lost", accuracy["large"] - accuracy["pruned by half"], 0.5, at_most=True),
        ],
        note=f"Medians of {ROUNDS} rounds of {count:,} images in turn. Pruned once, then {PRUNED_EPOCHS} epochs more;"
        f" the large network had {LARGE_EPOCHS}.",
    )


def _bytes(folder: Path) -> int:
    return (folder / "network.safetensors").stat().st_size


def _told(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
