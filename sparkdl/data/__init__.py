"""Turns raw tables into datasets (driver and tasks), and datasets into batches (ranks)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl.data.card import Card, InputSpec
from sparkdl.data.dataset import Dataset
from sparkdl.data.reading.arrays import decode
from sparkdl.data.reading.shards import Phase
from sparkdl.data.row_groups import RowGroup
from sparkdl.data.sparse_rows import decode_sparse

if TYPE_CHECKING:
    from sparkdl.data.preparing.own_pipeline import apply_preprocessing
    from sparkdl.data.preparing.prepare import check_prepare, prepare
    from sparkdl.data.preparing.splits import split_rows
    from sparkdl.data.reading.loader import Batch, Loader
    from sparkdl.data.reading.sparse import SparseBatch, SparseLoader
    from sparkdl.data.sources.fetch import fetch
    from sparkdl.data.sources.open import open_source

__all__ = [
    "Batch",
    "Card",
    "Dataset",
    "InputSpec",
    "Loader",
    "Phase",
    "RowGroup",
    "SparseBatch",
    "SparseLoader",
    "apply_preprocessing",
    "check_prepare",
    "decode",
    "decode_sparse",
    "fetch",
    "open_source",
    "prepare",
    "split_rows",
]

_HOMES = {
    "sparkdl.data.preparing.own_pipeline": ["apply_preprocessing"],
    "sparkdl.data.preparing.prepare": ["check_prepare", "prepare"],
    "sparkdl.data.preparing.splits": ["split_rows"],
    "sparkdl.data.reading.loader": ["Batch", "Loader"],
    "sparkdl.data.reading.sparse": ["SparseBatch", "SparseLoader"],
    "sparkdl.data.sources.fetch": ["fetch"],
    "sparkdl.data.sources.open": ["open_source"],
}
"""Names that are imported on first use: servers and scoring tasks do not prepare data, and tasks that read or write
rows do not need torch, which takes seconds to import."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sparkdl.data' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
