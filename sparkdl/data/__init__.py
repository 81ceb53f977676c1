"""Raw tables become datasets (driver and tasks); datasets become batches (ranks)."""

from typing import TYPE_CHECKING, Any

from sparkdl.data.card import Card, InputSpec
from sparkdl.data.dataset import Dataset, RowGroup
from sparkdl.data.preparing.features import apply_preprocessing
from sparkdl.data.preparing.prepare import check_prepare, prepare
from sparkdl.data.preparing.splits import split_rows
from sparkdl.data.reading.arrays import decode
from sparkdl.data.reading.shards import Phase
from sparkdl.data.sources.fetch import fetch
from sparkdl.data.sources.open import open_source
from sparkdl.data.sparse_rows import decode_sparse

if TYPE_CHECKING:
    from sparkdl.data.reading.loader import Batch, Loader
    from sparkdl.data.reading.sparse import SparseBatch, SparseLoader

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


def __getattr__(name: str) -> Any:
    # Imported on first use: tasks that read, write or score rows have no use for torch, which takes seconds to load.
    if name in ("Batch", "Loader"):
        from sparkdl.data.reading import loader

        return getattr(loader, name)
    if name in ("SparseBatch", "SparseLoader"):
        from sparkdl.data.reading import sparse

        return getattr(sparse, name)
    raise AttributeError(f"module 'sparkdl.data' has no attribute {name!r}")
