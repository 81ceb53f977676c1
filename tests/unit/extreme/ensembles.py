"""Small ensembles that have learned nothing, and rows for them."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data import InputSpec
from sparkdl.data.card_parts import LabelsFile
from sparkdl.extreme.ensemble_card import ENSEMBLE_NAME, EnsembleCard
from sparkdl.extreme.fit import new_models
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.extreme.ranker import TrainedRanker, write_ranker
from sparkdl.extreme.repetitions import save_repetition
from sparkdl.settings import Extreme

__all__ = ["BUCKETS", "CLASSES", "INPUT", "VECTOR", "WIDTH", "rows", "write"]

WIDTH, CLASSES, BUCKETS = 50, 30, 8
INPUT = InputSpec(column="features", kind="sparse", shape=(WIDTH,), dtype="float32")
VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


def write(
    folder: Path,
    repetitions: tuple[int, ...] = (0, 1, 3),
    *,
    asked: int = 4,
    width: int = WIDTH,
    hashed_features: int | None = None,
    hidden: tuple[int, ...] = (16,),
    ranker: TrainedRanker | None = None,
) -> MetaModels:
    """An ensemble that has learned nothing, and the same in memory."""
    settings = Extreme(buckets=BUCKETS, hidden=list(hidden), hashed_features=hashed_features, seed=1)
    models = new_models(settings, width, repetitions)
    records = [
        save_repetition(
            str(folder), number, models.state_of(place), made_of="this", losses=[1.0], rate=1.0, seconds=1.0
        )
        for place, number in enumerate(repetitions)
    ]
    names = [f"class {number}" for number in range(CLASSES)]
    pq.write_table(pa.table({"name": names, "count": [1] * CLASSES}), folder / "labels.parquet")
    content = (folder / "labels.parquet").read_bytes()
    card = EnsembleCard(
        width=width,
        hashed_features=hashed_features,
        labels=LabelsFile(classes=CLASSES, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()),
        hidden=hidden,
        buckets=BUCKETS,
        hash_family="universal",
        seed=1,
        loss="softmax",
        asked=asked,
        repetitions={record.repetition: record.sha256 for record in records},
        ranker=write_ranker(folder, ranker) if ranker else None,
    )
    (folder / ENSEMBLE_NAME).write_text(card.model_dump_json())
    return models


def rows(count: int, *, width: int = WIDTH) -> pa.Array:
    """Sparse vectors as Spark hands them over, the last one stored whole."""
    random = np.random.default_rng(0)
    sparse = [
        {"type": 0, "size": width, "indices": [place, place + 7], "values": [1.0, float(random.normal())]}
        for place in random.integers(0, width - 7, count - 1)
    ]
    whole = {"type": 1, "size": None, "indices": None, "values": [0.5] + [0.0] * (width - 1)}
    return pa.array([*sparse, whole], VECTOR)
