"""Fitted models of ``pyspark.ml``: a network as columns of a DataFrame. Run on the driver; tasks score."""

import re
from collections.abc import Sequence
from typing import Any, Self

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array, col, element_at, lit
from typing_extensions import override

from sparkdl.data.bad_rows import PROBLEM
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import ConfigError
from sparkdl.estimator.inputs import feature_kinds
from sparkdl.estimator.params import ClassifierColumns, Columns
from sparkdl.estimator.saving import ModelReader, ModelWriter
from sparkdl.estimator.summary import TrainingSummary
from sparkdl.scoring.columns import check_room
from sparkdl.scoring.dataframe import score_vectors
from sparkdl.scoring.raw_inputs import Features
from sparkdl.settings import Tracking
from sparkdl.tracking import download

__all__ = ["FittedModel", "TorchClassificationModel", "TorchRankingModel", "TorchRegressionModel"]

_PLACES_PER_CLASS = 100
"""Whole-number labels whose largest value exceeds this many per class are identifiers, not class indices."""


class FittedModel(Model, Columns, MLReadable["FittedModel"], MLWritable):
    """The base of fitted models: where the network is stored, and how it was trained."""

    def __init__(
        self,
        model_uri: str,
        *,
        tracking_uri: str | None = None,
        label_type: str | None = None,
        means: Sequence[float] | None = None,
        summary: TrainingSummary | None = None,
    ) -> None:
        super().__init__()
        self.model_uri, self.tracking_uri = model_uri, tracking_uri
        self.label_type = label_type
        """The type of the labels, for models of older versions, whose cards do not have it; None for all others."""
        self.means = means
        """The replacement of missing values, one per feature; None if ``missing`` was not set."""
        self.trusted_modules: list[str] = []
        """Modules or packages whose code may be imported to build a network that could not be exported. For a model
        that was fitted in this process it is the network's module. For a loaded model it is empty until you set it."""
        self.trainingSummary = summary
        """None for a model that was saved by an older version."""
        self._setDefault(sparse=False)

    @override
    def write(self) -> MLWriter:
        """A writer that saves the columns' names and a copy of the model itself, not a link to the tracking server."""
        return ModelWriter(self)

    @classmethod
    @override
    def read(cls) -> MLReader["FittedModel"]:
        """A reader of what :meth:`write` wrote."""
        return ModelReader(cls)

    @override
    def copy(self, extra: Any = None) -> Self:
        """A copy with its own column names."""
        alike = type(self)(
            self.model_uri,
            tracking_uri=self.tracking_uri,
            label_type=self.label_type,
            means=self.means,
            summary=self.trainingSummary,
        )
        alike.trusted_modules = list(self.trusted_modules)
        return self._copyValues(alike, extra)

    @property
    def tracking(self) -> Tracking:
        """Where the model is fetched from."""
        return Tracking(uri=self.tracking_uri)

    def _features(self, dataset: DataFrame) -> Features | None:
        if self.isSet(self.inputs):
            return None
        kinds = feature_kinds(dataset, self.getFeaturesCols(), sparse=self.getOrDefault(self.sparse))
        if self.means is None:
            return Features(tuple(kinds.items()))
        return Features(tuple(kinds.items()), self.getOrDefault(self.missing), tuple(self.means))

    def _answered(self, dataset: DataFrame, columns: dict[str, Column], *, vectors: bool) -> DataFrame:
        """The rows with these columns added, and with the contributions of features if ``contributionsCol`` is set."""
        asked = self.isDefined(self.contributionsCol)
        if asked and self.isSet(self.inputs):
            raise ConfigError("contributionsCol needs a single vector of features, but this model has several inputs")
        if asked:
            columns = columns | {self.getOrDefault(self.contributionsCol): array_to_vector(col("contributions"))}
        check_room(dataset, list(columns))
        features, own = self._features(dataset), dataset.drop(PROBLEM).columns
        scored = score_vectors(
            dataset,
            self.model_uri,
            features,
            vectors=vectors,
            contributions=asked,
            trusted_modules=self.trusted_modules,
            tracking=self.tracking,
        )
        return scored.select(*scored.columns[: len(own)], *columns.values()).toDF(*own, *columns)


class NumberModel(FittedModel):
    """The base of models that add one number per row, and nothing else."""

    @override
    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self._answered(dataset, {self.getPredictionCol(): col("prediction")}, vectors=False)


class TorchRegressionModel(NumberModel):
    """A fitted :class:`TorchRegressor`: adds the predicted number."""


class TorchRankingModel(NumberModel):
    """A fitted :class:`TorchRanker`: adds a score; rows with higher scores rank first.

    The score of a row does not depend on other rows, so ``qidCol`` is not needed.
    """


class TorchClassificationModel(FittedModel, ClassifierColumns):
    """A fitted :class:`TorchClassifier`: adds the predicted label, and vectors with one element per class.

    Numeric labels are predicted as doubles, because pyspark.ml's evaluators need them; other labels keep the type that
    the model's card states. The elements of ``probability`` and ``rawPrediction`` are in the order of :attr:`labels`.
    ``rawPrediction`` holds logits that are centred at zero: with two classes, plus and minus half the margin.
    """

    @property
    def labels(self) -> list[str | None]:
        """The label of each element of the vectors, as text; None if no training row had that label."""
        return _by_index(ModelCard.load(download(self.model_uri, self.tracking)).label_names)

    @property
    def numClasses(self) -> int:  # noqa: N802 - pyspark.ml's name
        """The length of the vectors."""
        return len(self.labels)

    @override
    def _transform(self, dataset: DataFrame) -> DataFrame:
        card = ModelCard.load(download(self.model_uri, self.tracking))
        names = card.label_names
        places = [names.index(label) if label is not None else None for label in _by_index(names)]
        label_type = card.label_type or self.label_type
        kind = label_type if label_type in ("string", "boolean") else "double"
        columns = {
            self.getRawPredictionCol(): _vector("logits", places, absent=float("-inf")),
            self.getProbabilityCol(): _vector("probabilities", places, absent=0.0),
            self.getPredictionCol(): col("prediction").cast(kind),
        }
        return self._answered(dataset, columns, vectors=True)


def _vector(name: str, places: Sequence[int | None], *, absent: float) -> Column:
    """An array by class index as a vector whose elements are those of the classes in ``places``, in this order."""
    if list(places) == list(range(len(places))):
        return array_to_vector(col(name))
    values = [lit(absent) if place is None else element_at(col(name), place + 1) for place in places]
    return array_to_vector(array(*values))


def _by_index(names: Sequence[str]) -> list[str | None]:
    """The class of each element of a vector; None if no training row had it.

    ``pyspark.ml`` numbers classes from 0 to the largest label. If labels are not such whole numbers, or if that would
    give far more elements than classes, there is one element per class, in the order of ``names``.
    """
    if not all(re.fullmatch(r"0|[1-9]\d{0,18}", name) for name in names):
        return list(names)
    places = {int(name): name for name in names}
    if max(places) >= _PLACES_PER_CLASS * len(places):
        return list(names)
    return [places.get(place) for place in range(max(places) + 1)]
