"""The parameters of estimators and models, with the names that ``pyspark.ml`` uses."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from sparkdl.settings import Input, Section, Train

__all__ = ["ClassifierColumns", "Columns", "FitParams", "GroupColumn", "TrainParams"]

OURS = ("dataset", "run_dir", "task")
"""Keys of :class:`Train` that are no parameters: the DataFrame, the store and the estimator's class determine them."""


def _share(value: Any) -> float:
    """A share of rows. Raises ``TypeError`` for others, to which pyspark.ml adds the name of the parameter."""
    share: float = TypeConverters.toFloat(value)
    if not 0 <= share < 1:
        raise TypeError(f"It must be a share, at least 0 and below 1, not {value}")
    return share


def _named_inputs(value: Any) -> dict[str, Any]:
    """Inputs by name, as :class:`~sparkdl.settings.Input` has them. A text or a list names the input's columns."""
    found = {}
    for name, each in dict(value).items():
        given = {"column": each} if isinstance(each, str) else {"columns": each} if isinstance(each, list) else each
        found[str(name)] = Input.checked(given, place=f"featuresCol.{name}").model_dump(
            mode="json", exclude_defaults=True
        )
    return found


def _count(value: Any) -> int:
    count: int = TypeConverters.toInt(value)
    if count < 1:
        raise TypeError(f"It must be a whole number of at least 1, not {value}")
    return count


class Columns(HasFeaturesCol, HasLabelCol, HasPredictionCol):
    """The columns that every estimator and its model share."""

    featuresCols: Param[list[str]] = Param(  # noqa: N815 - the name that spark-rapids-ml has for it
        Params._dummy(), "featuresCols", "columns to learn from, instead of featuresCol", TypeConverters.toListString
    )
    inputs: Param[dict[str, Any]] = Param(
        Params._dummy(), "inputs", "inputs by name, instead of featuresCol: see prepare.inputs", _named_inputs
    )
    sparse: Param[bool] = Param(
        Params._dummy(),
        "sparse",
        "keep vectors sparse until a batch is trained on or scored",
        TypeConverters.toBoolean,
    )

    contributionsCol: Param[str] = Param(  # noqa: N815
        Params._dummy(),
        "contributionsCol",
        "the column of vectors with each feature's contribution; added only if this is set",
        TypeConverters.toString,
    )
    missing: Param[float] = Param(
        Params._dummy(),
        "missing",
        "if set, features that equal it, or are NaN or null, are replaced by the mean of the training rows",
        TypeConverters.toFloat,
    )

    def setFeaturesCol(self, value: str | Sequence[str] | Mapping[str, Any]) -> Any:  # noqa: N802 - pyspark.ml's name
        """Learn from one column, from a list of columns, or from a mapping of a network's arguments to columns."""
        self.clear(self.featuresCols)
        self.clear(self.inputs)
        if isinstance(value, str):
            return self._set(featuresCol=value)
        if isinstance(value, Mapping):
            return self._set(inputs=dict(value))
        return self._set(featuresCols=list(value))

    def getFeaturesCols(self) -> list[str]:  # noqa: N802
        """The columns to learn from, each once."""
        if self.isSet(self.inputs):
            columns = [column for each in self.getOrDefault(self.inputs).values() for column in Input(**each).raw]
            return list(dict.fromkeys(columns))
        several: list[str] = self.getOrDefault(self.featuresCols) if self.isSet(self.featuresCols) else []
        return several or [self.getFeaturesCol()]


class ClassifierColumns(Columns, HasProbabilityCol, HasRawPredictionCol):
    """The columns of classifiers: also ``probabilityCol`` and ``rawPredictionCol``."""


class GroupColumn(Params):
    """The column of groups, which only fitting a ranker needs."""

    qidCol: Param[str] = Param(  # noqa: N815
        Params._dummy(),
        "qidCol",
        "the column of groups: rows are ranked within their group",
        TypeConverters.toString,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(qidCol="qid")


class FitParams(HasWeightCol, HasValidationIndicatorCol):
    """The parameters of fitting that are neither columns nor keys of :class:`Train`."""

    num_ranks: Param[int] = Param(Params._dummy(), "num_ranks", "training processes; each takes one task slot", _count)
    validation: Param[float] = Param(
        Params._dummy(), "validation", "share of rows that decides which epoch was best", _share
    )
    store: Param[str] = Param(Params._dummy(), "store", "a folder that driver and executors reach")
    experiment: Param[str] = Param(Params._dummy(), "experiment", "the MLflow experiment; see tracking.experiment")
    tracking_uri: Param[str] = Param(Params._dummy(), "tracking_uri", "the MLflow tracking URI")


def _plain(value: Any) -> Any:
    """A settings section as a plain mapping, because an estimator is saved as JSON."""
    return value.model_dump() if isinstance(value, Section) else value


class TrainParams(Params):
    """One ``Param`` per key of :class:`Train`, so that a grid search can vary each of them."""

    FIELDS: ClassVar = [name for name in Train.model_fields if name not in OURS]

    for _name in FIELDS:
        locals()[_name] = Param(Params._dummy(), _name, Train.model_fields[_name].description or _name, _plain)  # type: ignore[attr-defined]
