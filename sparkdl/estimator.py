"""A ``pyspark.ml`` estimator: fit on a DataFrame, transform a DataFrame, inside ``Pipeline`` and ``CrossValidator``.

Every key of :class:`sparkdl.settings.Train` is a ``Param`` of the same name, so that a grid search can vary any.
"""

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol
from pyspark.ml.util import (
    DefaultParamsReadable,
    DefaultParamsReader,
    DefaultParamsWritable,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array, col, lit, map_from_entries, struct
from pyspark.sql.types import NumericType

from sparkdl.data import prepare
from sparkdl.data.sql import identifier
from sparkdl.errors import ConfigError, DataError
from sparkdl.masking import without_credentials
from sparkdl.scoring.columns import check_room
from sparkdl.scoring.dataframe import score
from sparkdl.scoring.model_card import ModelCard
from sparkdl.sessions import ml_context
from sparkdl.settings import Cluster, Prepare, Section, Split, Tracking, Train
from sparkdl.storage import download_files, join, remove, upload_files
from sparkdl.tracking import download, download_whole
from sparkdl.training.train import train

__all__ = ["TorchEstimator", "TorchModel"]

_PLACES_PER_CLASS = 100
"""Labels with larger gaps than that are numbers of something, and no indices."""
FEATURES, LABEL = "features", "label"  # what the columns are called in the prepared dataset


class _Columns(HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol):
    """The columns that estimator and model share, under ``pyspark.ml``'s own names."""


def _plain(value: Any) -> Any:
    """A section as the mapping that a file would have in its place: saving an estimator writes JSON."""
    return value.model_dump() if isinstance(value, Section) else value


class _Settings(Params):
    """One ``Param`` per key of :class:`Train`; the ones that follow from the DataFrame are left out."""

    FIELDS: ClassVar = [name for name in Train.model_fields if name not in ("dataset", "run_dir")]

    for _name in FIELDS:
        locals()[_name] = Param(Params._dummy(), _name, Train.model_fields[_name].description or _name, _plain)  # type: ignore[attr-defined]


class TorchEstimator(Estimator, _Columns, _Settings, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[type-arg]
    """Trains a network on ranks of the running cluster. Runs on the driver.

    ``featuresCol`` holds vectors or arrays of numbers, ``labelCol`` whole numbers, as everywhere in ``pyspark.ml``.
    The other arguments are those of :class:`sparkdl.Train` (``model``, ``epochs``, ``learning_rate`` …), and

    * ``num_ranks``: how many training processes; each takes one task slot.
    * ``validation``: the share of the rows that decides which epoch was best.
    * ``store``: a folder that driver and executors reach, for prepared data and checkpoints.
    * ``experiment``, ``tracking_uri``: where MLflow logs each fit. Credentials have no place in the URI, because
      parameters are shown, logged and saved as they are.
    """

    num_ranks: Param[int] = Param(Params._dummy(), "num_ranks", "training processes; each takes one task slot")
    validation: Param[float] = Param(Params._dummy(), "validation", "share of rows that decides which epoch was best")
    store: Param[str] = Param(Params._dummy(), "store", "a folder that driver and executors reach")
    experiment: Param[str] = Param(Params._dummy(), "experiment", "the MLflow experiment")
    tracking_uri: Param[str] = Param(Params._dummy(), "tracking_uri", "the MLflow tracking URI")

    def __init__(
        self,
        *,
        featuresCol: str = "features",  # noqa: N803 - the names that pyspark.ml uses
        labelCol: str = "label",  # noqa: N803
        predictionCol: str = "prediction",  # noqa: N803
        probabilityCol: str = "probability",  # noqa: N803
        num_ranks: int = 2,
        validation: float = 0.1,
        store: str = "output/estimator",
        experiment: str = "sparkdl",
        tracking_uri: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if tracking_uri and without_credentials(tracking_uri) != tracking_uri:
            raise ConfigError(
                f"tracking_uri: {tracking_uri} has credentials, which saving the estimator would write down; leave it"
                " out and set MLFLOW_TRACKING_URI, or give user and password as MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD"
            )
        Train(**settings)  # an unknown or impossible setting is an error here, not in fit
        defaults = {name: field.get_default(call_default_factory=True) for name, field in Train.model_fields.items()}
        self._setDefault(**{name: defaults[name] for name in self.FIELDS})
        self._set(
            featuresCol=featuresCol,
            labelCol=labelCol,
            predictionCol=predictionCol,
            probabilityCol=probabilityCol,
            num_ranks=num_ranks,
            validation=validation,
            store=store,
            experiment=experiment,
            **({"tracking_uri": tracking_uri} if tracking_uri else {}),
            **settings,
        )

    def _fit(self, dataset: DataFrame) -> "TorchModel":
        """Prepare the rows, train, and drop the prepared copy, whether training ends well or not."""
        _check_label(dataset, self.getLabelCol())
        folder = f"{self.getOrDefault(self.store)}/{uuid.uuid4().hex}"
        settings = Train(
            **{name: self.getOrDefault(name) for name in self.FIELDS} | {"run_dir": f"{folder}/runs"},
        )
        tracking_uri = self.getOrDefault(self.tracking_uri) if self.isSet(self.tracking_uri) else None
        tracking = Tracking(uri=tracking_uri, experiment=self.getOrDefault(self.experiment))
        prepared = prepare(
            dataset.select(_arrays(dataset, self.getFeaturesCol()), col(identifier(self.getLabelCol())).alias(LABEL)),
            Prepare(
                output=f"{folder}/dataset",
                label=LABEL,
                features=[FEATURES],
                split=Split(fractions={"validation": self.getOrDefault(self.validation)}),
                seed=settings.seed,
                num_ranks=self.getOrDefault(self.num_ranks),
            ),
        )
        try:
            trained = train(
                prepared,
                settings,
                cluster=Cluster(num_ranks=self.getOrDefault(self.num_ranks)),
                tracking=tracking,
                spark=dataset.sparkSession,
            )
        finally:
            remove(prepared.path)  # the rows are the caller's; only the run's checkpoints stay
        return self._copyValues(TorchModel(trained.model_uri, tracking_uri=tracking_uri))


class TorchModel(Model, _Columns, MLReadable["TorchModel"], MLWritable):
    """A fitted :class:`TorchEstimator`: adds the predicted label (double) and a vector of class probabilities."""

    def __init__(self, model_uri: str, *, tracking_uri: str | None = None) -> None:
        super().__init__()
        self.model_uri = model_uri
        self.tracking_uri = tracking_uri

    def write(self) -> MLWriter:
        """A writer whose folder holds the columns' names and the model itself, not a link to the tracking server."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader["TorchModel"]:
        """A reader of what :meth:`write` wrote."""
        return _ModelReader()

    def copy(self, extra: Any = None) -> "TorchModel":
        """A copy with its own column names."""
        return self._copyValues(TorchModel(self.model_uri, tracking_uri=self.tracking_uri), extra)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_room(dataset, [self.getPredictionCol(), self.getProbabilityCol()])
        tracking = Tracking(uri=self.tracking_uri)
        names = ModelCard.load(download(self.model_uri, tracking)).label_names
        packed = dataset.select(struct("*").alias("row"), _arrays(dataset, self.getFeaturesCol()))
        scored = score(packed, self.model_uri, top_k=len(names), tracking=tracking)
        by_label = map_from_entries("top_k")
        return scored.select(
            "row.*",
            col("prediction").cast("double").alias(self.getPredictionCol()),
            array_to_vector(array(*[by_label[name] if name else lit(0.0) for name in _by_index(names)])).alias(
                self.getProbabilityCol()
            ),
        )


class _ModelWriter(MLWriter):
    """Writes the parameters as ``pyspark.ml`` does, and a copy of the model beside them."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self.model = model

    def saveImpl(self, path: str) -> None:  # noqa: N802 - the name that pyspark.ml calls
        DefaultParamsWriter.saveMetadata(self.model, path, ml_context(self.sparkSession))
        tracking = Tracking(uri=self.model.tracking_uri)
        upload_files(join(path, "model"), download_whole(self.model.model_uri, tracking))


class _ModelReader(MLReader[TorchModel]):
    """Reads what :class:`_ModelWriter` wrote."""

    def load(self, path: str) -> TorchModel:
        metadata = DefaultParamsReader.loadMetadata(path, ml_context(self.sparkSession))
        folder = TemporaryDirectory(prefix="sparkdl-loaded-")  # what was loaded may be saved to the place it came from
        _loaded.append(folder)
        download_files(join(path, "model"), Path(folder.name, "model"))
        model = TorchModel(f"{folder.name}/model")
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


_loaded: list[TemporaryDirectory[str]] = []  # removed when the driver's Python ends


def _by_index(names: Sequence[str]) -> list[str | None]:
    """The class that each place of a vector of probabilities is for, None where no row had it.

    ``pyspark.ml`` counts from 0 up to the largest label. Where labels are none of its whole numbers, or that would be
    far more places than classes, these follow each other.
    """
    if not all(re.fullmatch(r"0|[1-9]\d{0,18}", name) for name in names):
        return list(names)
    places = {int(name): name for name in names}
    if max(places) >= _PLACES_PER_CLASS * len(places):
        return list(names)
    return [places.get(place) for place in range(max(places) + 1)]


def _check_label(dataset: DataFrame, column: str) -> None:
    """Predictions are doubles, as everywhere in ``pyspark.ml``: other labels than numbers would come back as null."""
    if column not in dataset.columns:
        raise DataError(f"there is no column {column!r} (labelCol); there are {', '.join(dataset.columns)}")
    kind = dataset.schema[column].dataType
    if not isinstance(kind, NumericType):
        raise DataError(
            f"the label column {column!r} is {kind.simpleString()}, and predictions are numbers: number strings with "
            "pyspark.ml.feature.StringIndexer before (IndexToString turns predictions back), cast truth values to int, "
            "or train with `sparkdl.train`, which takes labels as they are"
        )


def _arrays(dataset: DataFrame, column: str) -> Column:
    """The column as arrays of numbers under the name ``features``, from arrays or from vectors."""
    if column not in dataset.columns:
        raise DataError(f"there is no column {column!r} (featuresCol); there are {', '.join(dataset.columns)}")
    value, is_vector = col(identifier(column)), isinstance(dataset.schema[column].dataType, VectorUDT)
    return (vector_to_array(value, "float32") if is_vector else value).alias(FEATURES)
