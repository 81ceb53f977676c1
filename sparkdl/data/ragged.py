"""Rows of numbers with different lengths, concatenated in one array."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged"]


class Ragged(NamedTuple):
    """Row i has the values from ``offsets[i]`` to ``offsets[i + 1]``."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    """Shape (rows + 1,); the first is 0."""

    @classmethod
    def empty(cls, dtype: Any) -> "Ragged":
        """No rows."""
        return cls(np.empty(0, dtype), np.zeros(1, np.int64))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each row."""
        return np.diff(self.offsets)

    def take(self, rows: slice | NDArray[np.int64]) -> "Ragged":
        """Some of the rows. For a slice, values are not copied."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.rows)
            offsets = self.offsets[start : max(stop, start) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.values[places], offsets)

    @staticmethod
    def join(parts: "Sequence[Ragged]") -> "Ragged":
        """The rows of all parts, in order."""
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged(np.concatenate([part.values for part in parts]), _offsets(lengths))

    def padded(self, padding: int | float, dtype: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The rows as a padded array of shape (n, longest), and a mask that is true for values of rows."""
        lengths = self.lengths
        longest = int(lengths.max(initial=1))
        mask = np.arange(longest) < lengths[:, None]
        found = np.full(mask.shape, padding, dtype)
        found[mask] = self.values
        return found, mask

    def tobytes(self) -> bytes:
        """The content."""
        return self.values.tobytes() + self.offsets.tobytes()


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
