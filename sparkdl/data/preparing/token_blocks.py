"""Texts for language modelling: their tokens are laid end to end and cut into blocks, which are the dataset's rows.

As transformers' ``run_clm`` does it (``group_texts``), but that no token is dropped: the last block may be short. Which
texts lie together, and in which order, follows from their hashes, so that the blocks are the same however Spark
partitioned the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.named_plan import WRONG_INPUT
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, hash_of
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.preprocessing import FittedPipeline
from sparkdl.preprocessing.input_rows import as_binary, numbers_of
from sparkdl.preprocessing.tokens import Tokenise, end_of_text
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TokenBlocks", "end_of_texts", "laid_in_blocks"]

_PILE_BYTES = 1 << 22
"""About so much text is laid end to end by one task: each pile ends in a block that is shorter than the others."""
_PILE, _BLOCK = f"{WORKING}pile", f"{WORKING}block"
_TOKENS = np.dtype(np.int32)


class TokenBlocks(NamedTuple):
    """The rows of a dataset for language modelling."""

    rows: "DataFrame"
    """With the columns of the dataset, their split and their hashes. A block weighs what is predicted of it: all of its
    tokens but the first."""
    counts: dict[str, int]
    """Blocks by split."""


@contextmanager
def laid_in_blocks(
    texts: "DataFrame", raw: "DataFrame", inputs: InputPlan, fitted: FittedPipeline, settings: Prepare
) -> Iterator[TokenBlocks]:
    """The blocks of texts that stages have made tokens of, kept until the end. Runs on the driver; tasks lay them.

    ``raw`` are the same rows with the texts themselves. Raises :class:`DataError` for a split with fewer blocks than
    ranks.
    """
    from pyspark.sql import functions as sf

    ((name, each),) = settings.inputs.items()
    assert each.block_length is not None
    end = end_of_texts(fitted, each.end_of_text)
    value = sf.col(identifier(inputs.column))[name]
    piles = _piles(raw, inputs)
    tasks = min(sum(piles.values()), default_parallelism(texts.sparkSession))
    lying = texts.select(SPLIT, _pile_of(piles).alias(_PILE), value.alias(name), ORDER, CONTENT_HASH)
    sorted_ = lying.repartition(tasks, SPLIT, _PILE).sortWithinPartitions(SPLIT, _PILE, ORDER, CONTENT_HASH)
    struct = f"struct<`{name}`: binary, `{WRONG_INPUT}`: int>"
    schema = f"`{inputs.column}` {struct}, {LABEL_COLUMN} bigint, {WEIGHT_COLUMN} double, {SPLIT} string"
    made = sorted_.select(SPLIT, _PILE, name).mapInArrow(
        _layer(name, inputs.column, each.block_length, end), f"{schema}, {_PILE} bigint, {_BLOCK} bigint"
    )
    hashes = hash_of([_PILE, _BLOCK], settings.seed, "order"), hash_of([_PILE, _BLOCK], 0, "content")
    rows = made.withColumns(dict(zip((ORDER, CONTENT_HASH), hashes, strict=True))).drop(_PILE, _BLOCK).persist()
    try:
        counts = {row[SPLIT]: row["count"] for row in rows.groupBy(SPLIT).count().orderBy(SPLIT).collect()}
        for split in ("train", *settings.split.names):
            if counts.get(split, 0) < settings.num_ranks:
                raise DataError(
                    f"the texts of split {split!r} make {counts.get(split, 0)} blocks of {each.block_length} tokens,"
                    f" fewer than the {settings.num_ranks} ranks that share it; lower `num_ranks` or `block_length`, or"
                    " give it more texts"
                )
        yield TokenBlocks(rows, counts)
    finally:
        rows.unpersist()


def end_of_texts(fitted: FittedPipeline, token: str | None) -> int:
    """The id that stands between texts."""
    (stage,) = (stage for stage in fitted.stages if isinstance(stage, Tokenise))
    return end_of_text(stage.tokeniser, token)


def _piles(raw: "DataFrame", inputs: InputPlan) -> Mapping[str, int]:
    """How many piles each split has, from what its texts take."""
    from pyspark.sql import functions as sf

    (column,) = inputs.raw_columns
    found = raw.groupBy(SPLIT).agg(sf.sum(sf.octet_length(identifier(column))).alias("bytes")).collect()
    return {row[SPLIT]: max(round(row["bytes"] / _PILE_BYTES), 1) for row in found}


def _pile_of(piles: Mapping[str, int]) -> "Column":
    """The pile that a text is put on, among those of its split."""
    from pyspark.sql import functions as sf

    number = sf.lit(1)
    for split, count in piles.items():
        number = sf.when(sf.col(SPLIT) == split, sf.lit(count)).otherwise(number)
    return sf.pmod(sf.col(ORDER), number.cast("bigint"))


def _layer(
    name: str, column: str, length: int, end: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Lays the texts of each pile, which come one after another, and cuts them."""

    def lay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pile: tuple[str, int] | None = None
        rest, block = np.empty(0, _TOKENS), 0
        for batch in filter(len, batches):
            splits, piles = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            numbers, offsets = numbers_of(batch.column(2), _TOKENS)
            for begin, stop in _runs(splits, piles):
                if (splits[begin], piles[begin]) != pile:
                    if pile and len(rest) > 1:
                        yield _blocks(rest, len(rest), pile, block, name, column)
                    pile, rest, block = (splits[begin], piles[begin]), np.empty(0, _TOKENS), 0
                part = offsets[begin : stop + 1]
                rest = np.concatenate([rest, _with_ends(numbers[part[0] : part[-1]], part - part[0], end)])
                if whole := len(rest) // length:
                    yield _blocks(rest[: whole * length], length, pile, block, name, column)
                    rest, block = rest[whole * length :], block + whole
        if pile and len(rest) > 1:
            yield _blocks(rest, len(rest), pile, block, name, column)

    return lay


def _runs(splits: list[str], piles: list[int]) -> Iterator[tuple[int, int]]:
    """Where rows of one pile begin and end."""
    keys = list(zip(splits, piles, strict=True))
    starts = [0, *(row for row in range(1, len(keys)) if keys[row] != keys[row - 1]), len(keys)]
    yield from pairwise(starts)


def _with_ends(numbers: NDArray[np.int32], offsets: NDArray[np.int64], end: int) -> NDArray[np.int32]:
    """Texts end to end: behind each that has a token, ``end``, unless its tokeniser has put that there."""
    lasts = offsets[1:][np.diff(offsets) > 0]
    lasts = lasts[numbers[lasts - 1] != end]
    found: NDArray[np.int32] = np.insert(numbers, lasts, end)
    return found


def _blocks(
    tokens: NDArray[np.int32], length: int, pile: tuple[str, int], first: int, name: str, column: str
) -> pa.RecordBatch:
    """Tokens as rows of this length."""
    count = len(tokens) // length
    values = as_binary(tokens, np.arange(count + 1, dtype=np.int64) * length)
    fine = pa.array(np.zeros(count, np.int32))
    arrays = {
        column: pa.StructArray.from_arrays([values, fine], [name, WRONG_INPUT]),
        LABEL_COLUMN: pa.array(np.zeros(count, np.int64)),
        WEIGHT_COLUMN: pa.array(np.full(count, length - 1, np.float64)),
        SPLIT: pa.array([pile[0]] * count, pa.string()),
        _PILE: pa.array(np.full(count, pile[1], np.int64)),
        _BLOCK: pa.array(np.arange(first, first + count, dtype=np.int64)),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
