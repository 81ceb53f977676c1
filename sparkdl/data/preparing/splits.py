"""The raw rows of one split, for whoever wants to score or look at what a model was not trained on."""

from typing import TYPE_CHECKING

from sparkdl.data.preparing.features import choose_inputs
from sparkdl.data.preparing.order import SPLIT, with_split
from sparkdl.data.sql import identifier
from sparkdl.errors import DataError
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["split_rows"]


def split_rows(rows: "DataFrame", settings: Prepare, split: str) -> "DataFrame":
    """Those of the raw rows that :func:`prepare` with these settings puts into ``split``. Runs on the driver, lazily.

    With those among them that ``on_bad_rows: skip`` left out: scoring says of each what is wrong with it.

    Raises :class:`DataError` for a split that the settings do not make.
    """
    if not settings.split.column and split not in {"train", *settings.split.fractions}:
        raise DataError(f"there is no split {split!r}; there are {', '.join(['train', *settings.split.fractions])}")
    content = list(dict.fromkeys([*choose_inputs(rows, settings).raw_columns, *settings.keys]))
    placed = with_split(rows, content, settings)
    return placed.where(placed[SPLIT] == split).select(*map(identifier, rows.columns))
