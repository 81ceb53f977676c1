"""Tokens per second of a small transformer on texts of different lengths, beside loops that people write by hand.

One rank: a loop with PyTorch's ``pad_sequence`` and buckets as torchtext's ``BucketIterator`` made them: rows of a
hundred batches are sorted by length and cut into batches, whose order is drawn. Two ranks: ``DistributedDataParallel``
with the batches of our loader. Loops take turns in the same processes, one thread each; padding is no token.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from pyspark.sql import SparkSession
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

import sparkdl
from benchmarks.images import session
from benchmarks.loop import new_replica, timed_epoch
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import Communicator, TorchBackend
from sparkdl.data import Dataset, Loader
from sparkdl.settings import Prepare, Train
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.reports.reporter import Reporter

__all__ = ["Classifier", "run"]

ROWS, LENGTHS, VOCABULARY = 1_280, (5, 200), 2_000
ROUNDS = 6
BUCKET = 100
"""Batches that are sorted together by the loop that is written by hand."""
OURS, BY_HAND, DDP = "sparkdl", "hand-written, buckets", "DistributedDataParallel"

Texts = list[tuple[torch.Tensor, int]]


class Classifier(nn.Module):
    """A transformer of four layers, and the mean over a text's tokens."""

    def __init__(
        self,
        vocabularies: Mapping[str, int],
        input_shapes: Mapping[str, Sequence[int]],
        num_classes: int,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabularies["words"], width)
        self.places = nn.Embedding(input_shapes["words"][0], width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(width, num_classes)

    def forward(self, words: torch.Tensor, words_mask: torch.Tensor) -> torch.Tensor:
        """Logits of texts of shape (n, longest)."""
        places = torch.arange(words.shape[1], device=words.device)
        hidden = self.layers(self.tokens(words) + self.places(places), src_key_padding_mask=~words_mask)
        there = words_mask.unsqueeze(-1).float()
        answer: torch.Tensor = self.out((hidden * there).sum(1) / there.sum(1))
        return answer


SETTINGS = Train(model=Classifier, epochs=1 + ROUNDS, batch_size=32, optimizer="adamw", schedule="constant")


def run() -> Report:
    """Measure the loops in turn, on one rank and on two. Runs on the driver."""
    backend = TorchBackend()
    with _texts() as (spark, dataset):
        ((alone, paddings),) = run_ranks(partial(_one_rank, dataset), 1, spark=spark, backend=backend)
        together = run_ranks(partial(_two_ranks, dataset), 2, spark=spark, backend=backend)[0]
    ratios = {name: _ratio(rates) for name, rates in ((BY_HAND, alone), (DDP, together))}
    rows: list[list[str | float]] = [[1, name, median(rates), paddings[name]] for name, rates in alone.items()]
    rows += [[2, name, median(rates), paddings[OURS]] for name, rates in together.items()]
    return Report(
        title=f"sequences: a transformer of 4 layers on texts of {LENGTHS[0]} to {LENGTHS[1]} tokens",
        columns=["ranks", "loop", "tokens/s", "padding"],
        rows=rows,
        targets=[
            Target("one rank: tokens/s over the hand-written loop's", ratios[BY_HAND], 0.97),
            Target("two ranks: tokens/s over DDP's", ratios[DDP], 1.0),
            Target("padding, part of a batch", paddings[OURS], 0.1, at_most=True),
        ],
        note=f"Medians of {ROUNDS} epochs of {ROWS:,} texts, taken in turn, in batches of {SETTINGS.batch_size}; ratios"
        " are medians of pairs.",
    )


def _ratio(rates: dict[str, list[float]]) -> float:
    ours, theirs = rates.values()
    return median(a / b for a, b in zip(ours, theirs, strict=True))


@contextmanager
def _texts() -> Iterator[tuple[SparkSession, Dataset]]:
    """Texts of random tokens, prepared."""
    random = np.random.default_rng(0)
    lengths = random.integers(LENGTHS[0], LENGTHS[1] + 1, ROWS)
    rows = [(int(n % 4), random.integers(0, VOCABULARY, length).tolist()) for n, length in enumerate(lengths)]
    with session() as spark, TemporaryDirectory() as folder:
        frame = spark.createDataFrame(rows, "label int, words array<int>")
        inputs = {"words": {"column": "words", "kind": "sequence", "vocabulary": VOCABULARY}}
        settings = {"output": str(Path(folder) / "texts"), "inputs": inputs, "split": {"fractions": {}}}
        yield spark, sparkdl.prepare(frame, Prepare.model_validate(settings))


def _one_rank(dataset: Dataset, rank: Rank) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Tokens per second by loop and epoch, and the share of padding. The first epoch fills caches."""
    torch.set_num_threads(1)
    texts = _in_memory(dataset)
    with TorchBackend().connect() as communicator:
        loops = {OURS: _sparkdl(dataset, rank, communicator), BY_HAND: _by_hand(dataset, texts)}
        rates = _in_turn(loops)
    ours = [batch.inputs["words_mask"] for batch in _loader(dataset, rank).epoch(0) if isinstance(batch.inputs, dict)]
    theirs = [mask for _, mask, _ in _bucketed(texts, np.random.default_rng(0))]
    return rates, {OURS: _padding(ours), BY_HAND: _padding(theirs)}


def _two_ranks(dataset: Dataset, rank: Rank) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    with TorchBackend().connect() as communicator:
        return _in_turn({OURS: _sparkdl(dataset, rank, communicator), DDP: _ddp(dataset, rank)})


def _in_turn(loops: dict[str, Iterator[float]]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(1 + ROUNDS):
        for name in sorted(loops, reverse=bool(number % 2)):
            rates[name].append(next(loops[name]))
    return {name: found[1:] for name, found in rates.items()}


def _loader(dataset: Dataset, rank: Rank) -> Loader:
    return Loader(dataset, "train", batch_size=SETTINGS.batch_size, rank=rank.rank, size=rank.size, seed=SETTINGS.seed)


def _in_memory(dataset: Dataset) -> Texts:
    """All texts, as a program of one's own would hold them."""
    texts: Texts = []
    for batch in Loader(dataset, "train", batch_size=256, shuffle=False).epoch(0):
        assert isinstance(batch.inputs, dict)
        masks = batch.inputs["words_mask"]
        texts += [
            (words[mask].clone(), int(label))
            for words, mask, label in zip(batch.inputs["words"], masks, batch.labels, strict=True)
        ]
    return texts


def _tokens(dataset: Dataset) -> int:
    return sum(len(words) for words, _ in _in_memory(dataset))


def _sparkdl(dataset: Dataset, rank: Rank, communicator: Communicator) -> Iterator[float]:
    replica = new_replica(rank, dataset, SETTINGS, communicator)
    reporter, state = Reporter(rank, replica.task), TrainingState()
    each = _tokens(dataset) / dataset.rows("train")
    while True:
        yield timed_epoch(replica, dataset, state, reporter) * each


def _by_hand(dataset: Dataset, texts: Texts) -> Iterator[float]:
    model = build_model(dataset, SETTINGS).train()
    optimizer = build_optimizer(SETTINGS, model)
    random, tokens = np.random.default_rng(0), sum(len(words) for words, _ in texts)
    while True:
        started = time.perf_counter()
        for words, mask, labels in _bucketed(texts, random):
            optimizer.zero_grad()
            functional.cross_entropy(model(words, mask), labels).backward()
            optimizer.step()
        yield tokens / (time.perf_counter() - started)


def _bucketed(texts: Texts, random: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    size = SETTINGS.batch_size
    order = random.permutation(len(texts))
    for begin in range(0, len(order), size * BUCKET):
        pool = sorted(order[begin : begin + size * BUCKET], key=lambda row: len(texts[row][0]))
        batches = [pool[first : first + size] for first in range(0, len(pool), size)]
        for number in random.permutation(len(batches)):
            rows = [texts[row] for row in batches[number]]
            lengths = torch.tensor([len(words) for words, _ in rows])
            words = pad_sequence([words for words, _ in rows], batch_first=True)
            mask = torch.arange(words.shape[1]) < lengths[:, None]
            yield words, mask, torch.tensor([label for _, label in rows])


def _ddp(dataset: Dataset, rank: Rank) -> Iterator[float]:
    model = build_model(dataset, SETTINGS)
    optimizer, tokens = build_optimizer(SETTINGS, model), _tokens(dataset)
    replica = DistributedDataParallel(model).train()
    for epoch in range(SETTINGS.epochs):
        started = time.perf_counter()
        for batch in _loader(dataset, rank).epoch(epoch):
            assert isinstance(batch.inputs, dict)
            optimizer.zero_grad()
            functional.cross_entropy(replica(**batch.inputs), batch.labels).backward()
            optimizer.step()
        distributed.barrier()
        yield tokens / (time.perf_counter() - started)


def _padding(masks: list[torch.Tensor]) -> float:
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
