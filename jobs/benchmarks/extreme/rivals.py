"""Other ways to tell very many classes apart, on the same rows. Each runs in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

import sparkdl
from benchmarks.extreme import peers
from benchmarks.extreme.environments import ENVIRONMENTS, python_of
from benchmarks.extreme.task import rows_of
from sparkdl.data import SparseLoader

__all__ = ["LONGEST", "Outcome", "one_vs_all", "peer", "write_rows"]

K = peers.K
LONGEST = 180.0
"""Seconds that a rival may take to train."""
LONGEST_PREDICTION = 120.0
"""Seconds that it may take to predict, and to load what it needs."""
MEMORY = 0.75
"""The part of the memory that is free now which it may take: one classifier for each class may want all there is."""
TRIAL = 8
"""Steps from which training time is extrapolated."""


@dataclass(frozen=True)
class Outcome:
    """What one rival came to."""

    predicted: npt.NDArray[np.int64]
    """The best classes of the test rows, best first, of shape (n, 5); -1 where it named fewer."""
    seconds: float
    """Of training."""
    cpu_seconds: float
    """Of all its threads and processes, in training."""
    model_bytes: int
    rows_per_second: float
    """Of predicting."""


def write_rows(dataset: sparkdl.Dataset, folder: Path) -> None:
    """Write the splits ``train`` and ``test`` as :mod:`benchmarks.extreme.peers` reads them."""
    for split in ("train", "test"):
        rows = rows_of(dataset, split)
        x = sparse.csr_matrix((rows.values, rows.indices, rows.offsets), (rows.rows, dataset.input.shape[0]))
        x.sort_indices()
        sparse.save_npz(folder / f"{split}_x.npz", x, compressed=False)
        if split == "test":
            continue
        ones = np.ones(len(rows.labels), np.float32)
        y = sparse.csr_matrix((ones, rows.labels, rows.label_offsets), (rows.rows, dataset.num_classes))
        y.sort_indices()  # napkinXC crashes where a row's labels are in another order
        sparse.save_npz(folder / f"{split}_y.npz", y, compressed=False)
        with (folder / f"{split}.txt").open("w") as file:
            file.write(f"{rows.rows} {dataset.input.shape[0]} {dataset.num_classes}\n")
            for own, labels in zip(x, y, strict=True):
                pairs = " ".join(f"{i}:{v:.6g}" for i, v in zip(own.indices.tolist(), own.data.tolist(), strict=True))
                file.write(f"{','.join(map(str, labels.indices.tolist()))} {pairs}\n")


def peer(name: str, folder: Path, threads: int) -> Outcome | str:
    """Train and ask another library, with the rows in a folder; or why there is nothing to tell of it."""
    log = folder / f"{peers.folder_of(name)}.log"
    try:
        python = python_of(ENVIRONMENTS[name])
        limit = int(MEMORY * psutil.virtual_memory().available)
        command = [str(python), peers.__file__, name, str(folder), str(threads), str(limit)]
        with log.open("w") as output:
            subprocess.run(command, stdout=output, stderr=output, check=True, timeout=LONGEST + LONGEST_PREDICTION)
    except subprocess.TimeoutExpired:
        return f"not done within {LONGEST + LONGEST_PREDICTION:.0f} s"
    except subprocess.CalledProcessError as error:
        print(log.read_text()[-2000:], file=sys.stderr)
        return f"failed with exit status {error.returncode}; it may take {limit / 1e9:.0f} GB of memory"
    own = folder / peers.folder_of(name)
    return Outcome(np.load(own / "predicted.npy"), **json.loads((own / "outcome.json").read_text()))


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
    started, spent = time.perf_counter(), time.process_time()
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
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    found = []
    started = time.perf_counter()
    with torch.no_grad():
        for batch in SparseLoader(dataset, "test", batch_size=settings.batch_size, shuffle=False).epoch(0):
            found.append(rest(first(batch.indices, batch.offsets, batch.values)).topk(K).indices)
    parameters = sum(each.numel() for each in [*first.parameters(), *rest.parameters()])
    predicted = torch.cat(found).numpy()
    return Outcome(predicted, seconds, spent, 4 * parameters, len(predicted) / (time.perf_counter() - started))
