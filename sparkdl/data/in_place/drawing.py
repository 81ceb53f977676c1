"""Draws splits for rows that stay in place.

A row's split depends only on its position (the number of its row group among those of all files, and its number in the
row group) and the seed. It is computed whenever it is needed, and stored nowhere.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.preparing.row_hashes import hash_rows

__all__ = ["rows_of", "split_names"]

_UNIT = 1 << 53
"""Hashes modulo this, divided by it, are exact doubles that are uniform in [0, 1)."""


def split_names(fractions: Mapping[str, float]) -> list[str]:
    """The splits that rows are drawn for, ``train`` last."""
    return [*sorted(fractions), "train"]


def rows_of(split: str, place: int, rows: int, *, fractions: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """The numbers of the rows in a row group of ``rows`` rows that belong to a split, in order. Runs anywhere."""
    if not fractions:
        return np.arange(rows)
    found: NDArray[np.int64] = np.flatnonzero(
        _drawn(place, rows, fractions, seed) == split_names(fractions).index(split)
    )
    return found


def _drawn(place: int, rows: int, fractions: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """For each row, the number of its split among :func:`split_names`."""
    columns = [pa.array(np.full(rows, place)), pa.array(np.arange(rows))]
    (hashes,) = hash_rows(columns, [("split", seed)])
    ends = np.cumsum([share for _, share in sorted(fractions.items())])
    drawn: NDArray[np.int64] = np.searchsorted(ends, (hashes % _UNIT) / _UNIT, side="right")
    return drawn
