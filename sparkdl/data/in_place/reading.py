"""Reads rows that stay in place into given memory. Runs on a rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.dataset import Dataset
from sparkdl.data.in_place.drawing import rows_of
from sparkdl.data.in_place.examples import examples_of
from sparkdl.data.in_place.parquet_columns import decode_columns
from sparkdl.data.reading.read import verified_content
from sparkdl.data.reading.shards import Segment
from sparkdl.data.row_groups import ForeignRowGroup

__all__ = ["read_in_place"]


def read_in_place(
    group: ForeignRowGroup,
    segment: Segment,
    dataset: Dataset,
    inputs: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[np.float64] | None,
    places: NDArray[np.int64],
) -> None:
    """Put the rows of a segment into ``inputs``, ``labels`` and ``weights``, the i-th at ``places[i]``.

    The whole row group is decoded, and preprocessed as in scoring. Raises :class:`DatasetError`, with the file's name,
    if the file is missing or was altered since it was examined.
    """
    in_place, examples = dataset.card.in_place, examples_of(dataset)
    assert in_place is not None
    rows = decode_columns(group, examples.columns, verified_content(group))
    own = rows_of(group.split, group.place, len(rows), fractions=in_place.fractions, seed=in_place.seed)
    taken = own[segment.start : segment.stop]
    if len(taken) < len(rows):
        rows = rows.take(taken)
    inputs[places] = examples.inputs(rows)
    labels[places] = examples.labels(rows)
    found = examples.weights(rows)
    if weights is not None and found is not None:
        weights[places] = found
