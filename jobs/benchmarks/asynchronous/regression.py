"""Sandblaster on a convex task, multinomial regression, beside scikit-learn's L-BFGS: both end at one loss."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from pyspark.sql import SparkSession
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional

import sparkdl
from benchmarks.asynchronous.training import fit
from benchmarks.report import Report, Target
from sparkdl.data import Loader
from sparkdl.training.network_to_train import build_model

__all__ = ["Regression", "measure", "reports"]

DECAY = 0.01
"""The loss is the mean cross-entropy plus half of this times the weights' squares."""
TOLERANCE = 1e-5
"""Of scikit-learn: it ends where no value of the gradient is larger."""
ITERATIONS = 1_000  # it does not get there


class Regression(BaseModel):
    """Where both have ended."""

    workers: int
    rows: int
    losses: list[float]
    """Ours, after each step."""
    seconds: float
    their_loss: float
    their_steps: int
    their_seconds: float


def measure(
    spark: SparkSession, dataset: sparkdl.Dataset, settings: Mapping[str, Any], *, workers: int, steps: int
) -> Regression:
    """Minimise the same function of the same rows, at most by so many steps. Runs on the driver."""
    plain = {**settings, "model": "mlp", "model_options": {"hidden": []}, "weight_decay": DECAY, "best_by": "loss"}
    chosen = {**plain, "strategy": "sandblaster", "epochs": steps}
    history = fit(spark, dataset, chosen, workers=workers).history
    rows, labels = _inputs(dataset, sparkdl.Train(**chosen))
    theirs = LogisticRegression(C=1 / (len(rows) * DECAY), tol=TOLERANCE, max_iter=ITERATIONS)
    started = time.perf_counter()
    theirs.fit(rows, labels)
    return Regression(
        workers=workers,
        rows=len(rows),
        losses=[epoch["train_loss"] for epoch in history],
        seconds=sum(epoch["seconds"] for epoch in history),
        their_loss=_loss(rows, labels, theirs.coef_, theirs.intercept_),
        their_steps=int(theirs.n_iter_[0]),
        their_seconds=time.perf_counter() - started,
    )


def _inputs(dataset: sparkdl.Dataset, settings: sparkdl.Train) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The training rows as the network's first layer hands them on, flattened, and their classes."""
    network = build_model(dataset, settings)
    scale = network[0] if isinstance(network, nn.Sequential) and dataset.input.kind == "image" else nn.Identity()
    with torch.no_grad():
        batches = [
            (scale(batch.inputs).flatten(1), batch.labels)
            for batch in Loader(dataset, "train", batch_size=4096).epoch(0)
        ]
    rows, labels = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
    return rows, labels


def _loss(rows: NDArray[np.float32], labels: NDArray[np.int64], weights: NDArray[Any], bias: NDArray[Any]) -> float:
    logits = torch.from_numpy(rows.astype(np.float64) @ weights.T + bias)
    return float(functional.cross_entropy(logits, torch.from_numpy(labels))) + DECAY / 2 * float((weights**2).sum())


def reports(found: Regression) -> list[Report]:
    """One table."""
    mine = found.losses[-1]
    within = next((n for n, loss in enumerate(found.losses, 1) if loss <= found.their_loss + 1e-4), None)
    return [
        Report(
            title=f"asynchronous: multinomial regression on {found.rows:,} rows of Fashion-MNIST by L-BFGS",
            columns=["system", "loss", "steps", "s"],
            rows=[
                [f"sparkdl, Sandblaster, {found.workers} workers", mine, str(len(found.losses)), found.seconds],
                ["scikit-learn", found.their_loss, str(found.their_steps), found.their_seconds],
            ],
            targets=[Target("difference of losses", abs(mine - found.their_loss), 1e-4, at_most=True)],
            note=f"sparkdl's loss is within 1e-4 after step {within or '-'}. Its seconds include a checkpoint after"
            " each step.",
            digits=7,
        )
    ]
