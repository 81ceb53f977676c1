"""Other libraries for very many classes: ``python peers.py NAME FOLDER THREADS BYTES``, in an environment that has it.

The folder has ``train.txt`` in the Extreme Classification Repository's format, and the same rows as SciPy's matrices:
``train_x.npz``, ``train_y.npz`` and ``test_x.npz``. What comes of it are ``predicted.npy``, the five best classes of
the test rows, best first and -1 where fewer were named, and ``outcome.json``. A peer that wants more memory than so
many bytes dies. Nothing here imports the project.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

K = 5
"""Classes that are predicted for each row."""
ROWS = 512
"""Rows that are predicted together where scores of all classes come back."""
Train = Callable[[Path, Any, Any, int], Any]
Predict = Callable[[Any, Any, int], Sequence[Sequence[int]]]


def omikuji(**changes: Any) -> tuple[Train, Predict]:
    """Parabel (Prabhu et al., 2018) as omikuji has it; ``changes`` to its default settings."""

    def train(folder: Path, x: Any, y: Any, threads: int) -> Any:
        from omikuji import Model

        settings = Model.default_hyper_param()
        for name, value in changes.items():
            setattr(settings, name, value)
        model = Model.train_on_data(str(folder / "train.txt"), settings, n_threads=threads)
        model.save(str(folder / "model"))
        return model

    def predict(model: Any, x: Any, threads: int) -> Sequence[Sequence[int]]:
        pairs = list(zip(x.indices.tolist(), x.data.tolist(), strict=True))
        rows = [pairs[begin:end] for begin, end in pairwise(x.indptr.tolist())]
        return [[label for label, _ in model.predict(row, top_k=K)] for row in rows]

    return train, predict


def napkinxc(kind: str) -> tuple[Train, Predict]:
    """Probabilistic label trees (Jasinska et al., 2016), or one classifier for each class, as napkinXC has them."""

    def train(folder: Path, x: Any, y: Any, threads: int) -> Any:
        from napkinxc import models

        model = getattr(models, kind)(str(folder / "model"), threads=threads)
        model.fit(x, [labels.tolist() for labels in np.split(y.indices, y.indptr[1:-1])])
        return model

    return train, lambda model, x, threads: model.predict(x, top_k=K)


def libmultilabel() -> tuple[Train, Predict]:
    """Bonsai's tree of linear classifiers (Khandagale et al., 2020) as LibMultiLabel has it."""

    def train(folder: Path, x: Any, y: Any, threads: int) -> Any:
        import libmultilabel.linear as linear

        model = linear.train_tree(y, x, verbose=False)
        weights = model.flat_model.weights
        sparse.save_npz(folder / "model.npz", sparse.csc_matrix(weights), compressed=False)
        return model

    def predict(model: Any, x: Any, threads: int) -> Sequence[Sequence[int]]:
        found = [model.predict_values(x[start : start + ROWS]) for start in range(0, x.shape[0], ROWS)]
        return [row for scores in found for row in np.argsort(-scores, axis=1)[:, :K].tolist()]

    return train, predict


def pecos() -> tuple[Train, Predict]:
    """XR-Linear (Yu et al., 2022) as PECOS has it."""

    def train(folder: Path, x: Any, y: Any, threads: int) -> Any:
        from pecos.xmc import Indexer, LabelEmbeddingFactory
        from pecos.xmc.xlinear.model import XLinearModel

        classes = LabelEmbeddingFactory.create(y, x, method="pifa")
        tree = Indexer.gen(classes, indexer_type="hierarchicalkmeans", threads=threads)
        model = XLinearModel.train(x, y, C=tree, threads=threads)
        model.save(str(folder / "model"))
        return model

    def predict(model: Any, x: Any, threads: int) -> Sequence[Sequence[int]]:
        found = model.predict(x, only_topk=K, threads=threads).tocsr()
        return [row.indices[np.argsort(-row.data)].tolist() for row in found]

    return train, predict


PEERS = {
    "omikuji": omikuji(),
    "omikuji, cluster_k = 100": omikuji(cluster_k=100),
    "napkinXC, PLT": napkinxc("PLT"),
    "napkinXC, one-vs-rest": napkinxc("OVR"),
    "LibMultiLabel, tree": libmultilabel(),
    "PECOS, XR-Linear": pecos(),
}


def folder_of(name: str) -> str:
    """Where a peer's files are."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def main(name: str, folder: Path, threads: int) -> None:
    """Train, keep the model, and predict."""
    train, predict = PEERS[name]
    train_x, train_y, test_x = (
        sparse.csr_matrix(sparse.load_npz(folder / f"{each}.npz"), dtype=np.float32)
        for each in ("train_x", "train_y", "test_x")
    )
    own = folder / folder_of(name)
    own.mkdir()
    (own / "train.txt").symlink_to(folder / "train.txt")
    started, spent = time.perf_counter(), _cpu_seconds()
    model = train(own, train_x, train_y, threads)
    trained, spent = time.perf_counter(), _cpu_seconds() - spent
    best = predict(model, test_x, threads)
    predicted = time.perf_counter()
    np.save(own / "predicted.npy", np.array([(list(row) + [-1] * K)[:K] for row in best], np.int64))
    size = sum(
        path.stat().st_size for path in own.rglob("*") if path.is_file() and "model" in str(path.relative_to(own))
    )
    outcome = {
        "seconds": trained - started,
        "cpu_seconds": spent,
        "rows_per_second": len(best) / (predicted - trained),
        "model_bytes": size,
    }
    (own / "outcome.json").write_text(json.dumps(outcome))


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[4]), int(sys.argv[4])))
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
