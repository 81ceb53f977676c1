"""Other ways to tell very many classes apart, on the same rows. Each function runs in a process of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

import sparkdl
from benchmarks.extreme.task import rows_of
from sparkdl.data import SparseLoader
from sparkdl.data.sparse_rows import Rows

__all__ = ["LONGEST", "Outcome", "omikuji", "one_vs_all", "plt", "write_rows"]

K = 5
"""Classes that are predicted for each row."""
LONGEST = 180.0
"""Seconds that a rival may take to train."""
TRIAL = 8
"""Steps from which training time is extrapolated."""


@dataclass(frozen=True)
class Outcome:
    """What one rival came to."""

    predicted: npt.NDArray[np.int64]
    """The best classes of the test rows, best first, of shape (n, 5); -1 where it named fewer."""
    seconds: float
    """Of training."""
    model_bytes: int


def write_rows(dataset: sparkdl.Dataset, split: str, path: Path) -> None:
    """Write a split in the Extreme Classification Repository's format, without labels that training never saw."""
    rows = rows_of(dataset, split)
    indices, values, labels = (array.tolist() for array in (rows.indices, rows.values, rows.labels))
    with path.open("w") as file:
        file.write(f"{rows.rows} {dataset.input.shape[0]} {dataset.num_classes}\n")
        for row in range(rows.rows):
            features = slice(rows.offsets[row], rows.offsets[row + 1])
            names = ",".join(str(label) for label in labels[rows.label_offsets[row] : rows.label_offsets[row + 1]])
            pairs = " ".join(f"{i}:{v:.6g}" for i, v in sorted(zip(indices[features], values[features], strict=True)))
            file.write(f"{names} {pairs}\n")


def omikuji(dataset: sparkdl.Dataset, folder: Path, threads: int) -> Outcome:
    """Parabel (Prabhu et al., 2018) as omikuji has it, with its default settings."""
    import omikuji  # type: ignore[import-not-found,import-untyped]

    write_rows(dataset, "train", folder / "train.txt")
    started = time.perf_counter()
    model = omikuji.Model.train_on_data(str(folder / "train.txt"), n_threads=threads)
    seconds = time.perf_counter() - started
    model.save(str(folder / "omikuji"))
    rows = rows_of(dataset, "test")
    found = [[label for label, _ in model.predict(pairs, top_k=K)] for pairs in _pairs(rows)]
    return Outcome(_padded(found), seconds, _bytes_in(folder / "omikuji"))


def plt(dataset: sparkdl.Dataset, folder: Path, threads: int) -> Outcome:
    """Probabilistic label trees (Jasinska et al., 2016) as napkinXC has them, with its default settings."""
    from napkinxc.models import PLT  # type: ignore[import-not-found,import-untyped]

    train, test = rows_of(dataset, "train"), rows_of(dataset, "test")
    labels = np.split(train.labels, train.label_offsets[1:-1])
    model = PLT(str(folder / "napkinxc"), seed=0, threads=threads)
    started = time.perf_counter()
    model.fit(_pairs(train), [row.tolist() for row in labels])
    seconds = time.perf_counter() - started
    return Outcome(_padded(model.predict(_pairs(test), top_k=K)), seconds, _bytes_in(folder / "napkinxc"))


def one_vs_all(
    dataset: sparkdl.Dataset, settings: sparkdl.Extreme, hidden: Sequence[int], threads: int
) -> Outcome | float:
    """One output per class behind the same hidden layer, or none; the seconds expected if they are too many.

    Plain PyTorch with the same epochs, batches and schedule as ours; labels of a row share one softmax.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(settings.seed)
    width, classes = dataset.input.shape[0], dataset.num_classes
    first = nn.EmbeddingBag(width, hidden[0] if hidden else classes, mode="sum", sparse=True, include_last_offset=True)
    nn.init.normal_(first.weight, 0.0, 0.05 if hidden else 0.0)
    sizes = [*hidden, classes]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.ReLU(), nn.Linear(a, b))]
    rest = nn.Sequential(*layers)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SparseAdam(first.parameters(), lr=settings.learning_rate)]
    if hidden:
        optimizers.append(torch.optim.Adam(rest.parameters(), lr=settings.learning_rate))
    loader = SparseLoader(dataset, "train", batch_size=settings.batch_size, seed=settings.seed)
    total, taken = settings.epochs * loader.steps, 0
    started = time.perf_counter()
    for epoch in range(settings.epochs):
        for batch in loader.epoch(epoch):
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = (
                    settings.learning_rate * min((taken + 1) / (0.05 * total + 1), 1) * (1 - taken / total)
                )
                optimizer.zero_grad()
            logits = rest(first(batch.indices, batch.offsets, batch.values))
            counts = batch.label_offsets.diff()
            row = torch.repeat_interleave(torch.arange(len(counts)), counts)
            share = 1 / counts[row]
            loss = -(functional.log_softmax(logits, 1)[row, batch.labels] * share).sum() / len(counts)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            taken += 1
            expected = (time.perf_counter() - started) / taken * total
            if taken == TRIAL and expected > LONGEST:
                return expected
    seconds = time.perf_counter() - started
    found = []
    with torch.no_grad():
        for batch in SparseLoader(dataset, "test", batch_size=settings.batch_size, shuffle=False).epoch(0):
            found.append(rest(first(batch.indices, batch.offsets, batch.values)).topk(K).indices)
    parameters = sum(each.numel() for each in [*first.parameters(), *rest.parameters()])
    return Outcome(torch.cat(found).numpy(), seconds, 4 * parameters)


def _pairs(rows: Rows) -> list[list[tuple[int, float]]]:
    """(feature, value) of each row, by feature."""
    indices, values = rows.indices.tolist(), rows.values.tolist()
    ends = rows.offsets.tolist()
    return [sorted(zip(indices[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]


def _padded(found: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.array([(list(row) + [-1] * K)[:K] for row in found], np.int64)


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


Rival = Callable[[sparkdl.Dataset, Path, int], Outcome]
