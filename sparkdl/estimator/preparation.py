"""The prepared copy of the rows that fits train on: its settings, and how long it exists. Runs on the driver."""

import json
import threading
import uuid
import weakref
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from sparkdl.cluster.slots import count_slots
from sparkdl.data import Dataset, prepare
from sparkdl.errors import ConfigError
from sparkdl.estimator.inputs import (
    FEATURES,
    LABEL,
    NAMED_SPLIT,
    QID,
    SPLIT,
    WEIGHT,
    check_label,
    rows_by_name,
    training_rows,
)
from sparkdl.estimator.missing import filled, means_of
from sparkdl.settings import Prepare, Split
from sparkdl.settings.section import TaskName
from sparkdl.storage import remove

__all__ = ["Preparation", "PreparedRows", "SharedRows"]


class Preparation(NamedTuple):
    """All parameters of an estimator that decide what the prepared copy of the rows holds, and where it is stored.

    Fits with equal values share a copy. It is a tuple so that it equals itself even if ``missing`` is NaN.
    """

    task: TaskName
    features: tuple[str, ...]
    inputs: str | None
    """``prepare.inputs`` as JSON; None if inputs have no names."""
    label: str
    weight: str | None
    qid: str | None
    """The column of groups, for ranking."""
    held_out: str | None
    """The column that is true for validation rows; if None, ``validation`` is their share."""
    validation: float
    missing: float | None
    sparse: bool
    seed: int
    num_ranks: int | None
    """None: as many as the cluster has slots."""
    store: str


class PreparedRows:
    """A prepared copy of the rows. The constructor writes it.

    The copy is removed by :meth:`drop`, when the object is garbage-collected, or when Python exits, whichever is first.
    The constructor raises what :func:`sparkdl.prepare` raises, and :class:`~sparkdl.errors.DataError` for columns that
    are missing or of another type.
    """

    dataset: Dataset
    means: list[float] | None
    """The replacement of missing values, one per feature; None if ``missing`` is not set."""
    num_ranks: int

    def __init__(self, rows: DataFrame, wanted: Preparation) -> None:
        check_label(rows, wanted.label, wanted.task)
        self.means = None
        if wanted.inputs is None:
            chosen, columns = self._one_vector(rows, wanted)
        else:
            chosen, columns = _named_inputs(rows, wanted, wanted.inputs)
        self.num_ranks = _slots(rows) if wanted.num_ranks is None else wanted.num_ranks
        folder = f"{wanted.store}/{uuid.uuid4().hex}"
        self.dataset = prepare(
            chosen,
            Prepare(
                output=f"{folder}/dataset",
                task=wanted.task,
                seed=wanted.seed,
                num_ranks=self.num_ranks,
                **columns,
            ),
        )
        self._drop = weakref.finalize(self, remove, folder)

    def _one_vector(self, rows: DataFrame, wanted: Preparation) -> tuple[DataFrame, dict[str, Any]]:
        """The rows with all features in one column, and the settings that name their columns."""
        chosen = training_rows(
            rows,
            wanted.features,
            wanted.label,
            sparse=wanted.sparse,
            weight=wanted.weight,
            validation=wanted.held_out,
            qid=wanted.qid,
        )
        if wanted.missing is not None:
            if wanted.sparse:
                raise ConfigError(
                    "missing: values of sparse vectors cannot be replaced by a mean; set only one of `missing` and"
                    " `sparse`"
                )
            known = chosen.where(col(SPLIT) == "train") if wanted.held_out else chosen
            self.means = means_of(known, FEATURES, wanted.missing)
            chosen = chosen.withColumn(FEATURES, filled(col(FEATURES), wanted.missing, self.means))
        return chosen, {
            "label": LABEL,
            "qid": QID if wanted.qid else None,
            "weight": WEIGHT if wanted.weight else None,
            "features": [FEATURES],
            "sparse": wanted.sparse,
            "unit_norm": False if wanted.sparse else None,
            "split": _split(wanted, SPLIT),
        }

    def drop(self) -> None:
        """Remove the copy, if it still exists."""
        self._drop()


class SharedRows:
    """A copy that ``fits`` fits share: made when the first one asks for it, removed when the last one has ended.

    Each fit is a ``with`` block of this object, and may run in its own thread. If the copy could not be made, the next
    fit that asks for it tries again.
    """

    def __init__(self, rows: DataFrame, wanted: Preparation, *, fits: int) -> None:
        self._rows, self._wanted, self._fits = rows, wanted, fits
        self._prepared: PreparedRows | None = None
        self._lock = threading.Lock()

    def prepared(self) -> PreparedRows:
        """The copy. Raises what :class:`PreparedRows` raises."""
        with self._lock:
            if self._prepared is None:
                self._prepared = PreparedRows(self._rows, self._wanted)
            return self._prepared

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._fits -= 1
            if self._prepared and not self._fits:
                self._prepared.drop()


def _named_inputs(rows: DataFrame, wanted: Preparation, inputs: str) -> tuple[DataFrame, dict[str, Any]]:
    """The rows, and the settings that name their columns, if inputs have names: columns keep their names."""
    unfit = {"missing": wanted.missing is not None, "sparse": wanted.sparse, "qidCol": wanted.qid is not None}
    if named := [name for name, is_set in unfit.items() if is_set]:
        raise ConfigError(
            f"{', '.join(named)}: only for a single vector of features, but featuresCol names several inputs; leave"
            " this out"
        )
    chosen = rows_by_name(rows, wanted.features, wanted.label, weight=wanted.weight, validation=wanted.held_out)
    return chosen, {
        "label": wanted.label,
        "weight": wanted.weight,
        "inputs": json.loads(inputs),
        "split": _split(wanted, NAMED_SPLIT),
    }


def _slots(rows: DataFrame) -> int:
    slots = count_slots(rows.sparkSession)
    if slots is None:
        raise ConfigError("Spark does not report how many task slots it has; set num_ranks")
    return slots


def _split(wanted: Preparation, column: str) -> Split:
    if wanted.held_out:
        return Split(column=column)
    return Split(fractions={"validation": wanted.validation} if wanted.validation else {})
