"""Which networks four ranks train under a limit of memory that the system enforces, whole and in parts.

The limit is one of each process (``RLIMIT_DATA``), and counts from what it holds after its imports: PyTorch's build
with CUDA takes twice as much as that for CPUs.
"""

import re
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.images import images, session
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset, Loader
from sparkdl.errors import RankError
from sparkdl.models import NETWORK_FILE
from sparkdl.scoring.network import open_model
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank
from sparkdl.training.model_folder import write_model_folder

__all__ = ["CASES", "OUT_OF_MEMORY", "Case", "Found", "extreme_rows", "limit_memory", "report", "run", "train"]

SIZE = 4
MB = 1_000_000
OUT_OF_MEMORY = "|".join(
    [
        "(allocate|out of) memory",  # PyTorch, the system
        "MemoryError",  # Python, Arrow
        "Unable to allocate",  # NumPy
        "bad_alloc",  # C++
        "could not create a (memory|primitive)",  # oneDNN
        "start new thread",  # whose stack has no room
        "ended with code -6",  # a library's thread had none: the process aborts
    ]
)
"""What a rank's error says, a pattern, where the system refused it memory: it depends on who asked for it."""
STRATEGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"kind": "allreduce"},
    "ist": {"kind": "ist"},
    "ist, sharded": {"kind": "ist", "sharded": True},
    "allreduce, shard: all": {"kind": "allreduce", "shard": "all"},
}
VOCABULARY, CLASSES, KEPT, WORDS = 500_000, 20_000, 20, 30
"""Of the made-up extreme classification: each class has 30 words of its own, of which a row has 20."""


@dataclass(frozen=True)
class Case:
    """A network and a limit."""

    name: str
    recipe: Mapping[str, Any]
    moments: int
    """Numbers that the optimizer keeps for each weight."""
    limit: int
    """Bytes that a process may have beside what it holds after its imports."""
    words: bool = False
    """Whether it is the extreme classification of texts, and not of images."""
    strategies: tuple[str, ...] = ("allreduce", "ist", "ist, sharded")
    """Of which the last one is to train the network, and no other."""

    def settings(self, strategy: str) -> Train:
        """How it is trained."""
        return Train(
            **self.recipe,
            strategy=STRATEGIES[strategy],  # type: ignore[arg-type]
            schedule="constant",
            checkpoint_minutes=None,
            keep_last=1,
        )


TEXTS = {
    "model": "bag_of_words",
    "model_options": {"vocabulary": VOCABULARY, "width": 2_560, "sparse": True},
    "optimizer": "torch.optim:Adagrad",  # which takes the embedding's sparse gradients
    "learning_rate": 0.01,
    "epochs": 2,
}
DENSE = {"model_options": {"hidden": (22_000, 22_000)}, "optimizer": "adam", "learning_rate": 1e-4, "epochs": 2}
DEEP = {"model_options": {"hidden": (2_048,) * 25}, "optimizer": "adam", "learning_rate": 1e-4, "epochs": 2}
CASES = (
    Case("500,000-2,560-20,000", TEXTS, moments=1, limit=3_549 * MB, words=True),
    Case("784-22,000-22,000-10", DENSE, moments=2, limit=2_006 * MB),
    Case("784-25 x 2,048-10", DEEP, moments=2, limit=819 * MB, strategies=("allreduce", "allreduce, shard: all")),
)


class Found(NamedTuple):
    """What became of a training."""

    outcome: str
    peak: str | float
    """MB that the largest rank had in memory, beside what it held after its imports."""
    seconds: str | float
    """Of an epoch, the last one."""


def run() -> Report:
    """Train each network with each strategy. Runs on the driver."""
    found = []
    for case in CASES:
        with _dataset(case) as dataset:
            weights = sum(parameter.nbytes for parameter in _hollow(dataset, case))
            found += [(case, weights, strategy, train(dataset, case, strategy)) for strategy in case.strategies]
    return report(found)


def report(found: Sequence[tuple[Case, int, str, Found]]) -> Report:
    """The table of what became of each network, of so many bytes, with each strategy."""
    return Report(
        title=f"memory: {SIZE} ranks, and what each may have",
        columns=[
            *("network", "strategy", "weights, MB", "limit of a rank, MB", "weights and optimizer over the limit"),
            *("outcome", "peak of a rank, MB", "epoch, s"),
        ],
        rows=[
            [case.name, strategy, weights / MB, case.limit / MB, (1 + case.moments) * weights / case.limit, *ended]
            for case, weights, strategy, ended in found
        ],
        targets=[
            Target(
                f"{case.name}, {strategy}: trained",
                float(ended.outcome.startswith("trained")),
                limit=float(strategy == case.strategies[-1]),
                at_most=strategy != case.strategies[-1],
            )
            for case, _, strategy, ended in found
        ],
        note="Whatever is trained is evaluated, saved, registered and scored under the same limit.",
    )


def _hollow(dataset: Dataset, case: Case) -> Iterator[Any]:
    return check_model(dataset, case.settings(case.strategies[-1]), ranks=SIZE).parameters()


def train(dataset: Dataset, case: Case, strategy: str) -> Found:
    """Train, evaluate, save, register and score under the limit, in processes of their own. Runs on the driver.

    Raises :class:`RankError` for any failure but that of memory.
    """
    settings = case.settings(strategy)
    with TemporaryDirectory() as folder:
        job = Job(dataset, settings, f"{folder}/run", TorchBackend(), reference=SIZE)
        try:
            ranks = run_local(partial(_limited_rank, job, case.limit), SIZE, backend=TorchBackend())
        except RankError as error:
            if not re.search(OUT_OF_MEMORY, str(error)):
                raise
            return Found("out of memory", "", "")
        history, checkpoint = ranks[0]["history"], ranks[0]["checkpoint"]
        register = partial(_limited_registration, dataset, settings, folder, checkpoint, case.limit)
        (size,) = run_local(register, 1, backend=TorchBackend())
        score = partial(_limited_scoring, dataset, settings, folder, case.limit)
        ((accuracy, own),) = run_local(score, 1, backend=TorchBackend())
        first, last = history[0]["train_loss"], history[-1]
        told = f"trained: loss {first:.2f} to {last['train_loss']:.2f}"
        if case.words:
            told += f", validation accuracy {ranks[0]['accuracy']:.3f}, of what is scored {accuracy:.3f}"
        told += f"; {size / MB:,.0f} MB registered, and {own / MB:,.0f} MB to score them"
        return Found(told, max(each["peak"] for each in ranks) / MB, last["seconds"])


def limit_memory(limit: int) -> None:
    """Let this process have so many bytes more than with its imports: what is beyond, the system refuses."""
    import_module("torch._dynamo")  # which an optimizer's first step would import
    threading.stack_size(1 << 20)  # a thread's stack counts as a whole, and 8 MB is usual
    most = _of_process("VmData") + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _of_process(key: str) -> int:
    """Bytes that the system says this process has."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise OSError(f"/proc/self/status has no {key}; the limit of memory is one of Linux")
    return 1024 * int(found[1])


def _limited_rank(job: Job, limit: int, rank: Rank) -> dict[str, Any]:
    limit_memory(limit)
    held = _of_process("VmRSS")
    outcome = train_rank(job, rank)
    found: dict[str, Any] = {"peak": _of_process("VmHWM") - held}
    if outcome:
        accuracy = outcome.evaluations["validation"].figures["accuracy"]
        found |= {"history": outcome.history, "checkpoint": outcome.checkpoint, "accuracy": accuracy}
    return found


def _limited_registration(
    dataset: Dataset, settings: Train, folder: str, checkpoint: str, limit: int, rank: Rank
) -> int:
    limit_memory(limit)
    with returned_memory():  # as on a driver
        write_model_folder(folder, dataset, settings, checkpoint)
    return (Path(folder) / NETWORK_FILE).stat().st_size


def _limited_scoring(dataset: Dataset, settings: Train, folder: str, limit: int, rank: Rank) -> tuple[float, int]:
    """The part of validation rows that the registered network answers right, and bytes of memory beside its file.

    A task maps the file, and the system takes back what is not being read: the mapping is allowed beside the limit.
    """
    limit_memory(limit + (Path(folder) / NETWORK_FILE).stat().st_size)
    held = _of_process("RssAnon")
    model = open_model(Path(folder), dataset.input, {"logits": (dataset.card.num_classes,)})
    loader = Loader(dataset, "validation", batch_size=settings.batch_size, shuffle=False)
    right = 0
    for batch in loader.epoch(0):
        right += int((model.outputs_of(np.asarray(batch.inputs))["logits"].argmax(dim=1) == batch.labels).sum())
    return right / dataset.rows("validation"), max(_of_process("RssAnon") - held, 0)


@contextmanager
def _dataset(case: Case) -> Iterator[Dataset]:
    """Rows of the network's inputs, gone afterwards. Each class of the extreme one has two to train on."""
    with session() as spark, TemporaryDirectory() as folder:
        if case.words:
            yield _extreme(spark, folder)
        else:
            settings = sparkdl.Prepare(output=f"{folder}/dataset", image="image", image_shape=[28, 28])
            yield sparkdl.prepare(images(spark, 640), settings)


def _extreme(spark: SparkSession, folder: str) -> Dataset:
    settings = sparkdl.Prepare(
        output=f"{folder}/dataset",
        features=["words"],
        task="classification",
        split=sparkdl.Split(column="part", fractions={}),
    )
    return sparkdl.prepare(spark.createDataFrame(extreme_rows(), ["label", "words", "part"]), settings)


def extreme_rows() -> list[tuple[int, list[float], str]]:
    """Of each row the class, the numbers of its words, from 1 to the vocabulary's size, and the split."""
    random = np.random.default_rng(0)
    words = 1.0 + random.integers(0, VOCABULARY, (CLASSES, WORDS))
    return [
        (label, random.choice(words[label], KEPT, replace=False).tolist(), part)
        for part, classes, count in (("train", CLASSES, 2), ("validation", CLASSES // 10, 1))
        for label in range(classes)
        for _ in range(count)
    ]
