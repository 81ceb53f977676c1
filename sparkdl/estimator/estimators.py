"""Estimators of ``pyspark.ml``: fit on a DataFrame, inside ``Pipeline`` and ``CrossValidator``. Run on the driver."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from pyspark.ml import Estimator
from pyspark.ml.base import _FitMultipleIterator
from pyspark.ml.param import Param
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from typing_extensions import override

from sparkdl.errors import ConfigError
from sparkdl.estimator.fitted import FittedModel, TorchClassificationModel, TorchRankingModel, TorchRegressionModel
from sparkdl.estimator.params import ClassifierColumns, Columns, FitParams, GroupColumn, TrainParams
from sparkdl.estimator.preparation import Preparation, SharedRows
from sparkdl.estimator.saving import EstimatorReader, EstimatorWriter
from sparkdl.estimator.summary import TrainingSummary
from sparkdl.masking import without_credentials
from sparkdl.planning.train import train
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.settings.explain import nearest
from sparkdl.settings.section import TaskName
from sparkdl.tracking import active_run, under

__all__ = ["TorchClassifier", "TorchRanker", "TorchRegressor"]


class _TorchEstimator(Estimator, Columns, FitParams, TrainParams, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[type-arg]
    """The parameters, the fitting and the saving that all estimators share."""

    TASK: ClassVar[TaskName]
    MODEL: ClassVar[type[FittedModel]]

    def __init__(self, **params: Any) -> None:
        super().__init__()
        defaults = {name: field.get_default(call_default_factory=True) for name, field in Train.model_fields.items()}
        self._setDefault(
            validation=0.1,
            store="output/estimator",
            experiment="sparkdl",
            sparse=False,
            **{name: defaults[name] for name in self.FIELDS},
        )
        self.setParams(**params)

    def setParams(  # noqa: N802 - pyspark.ml's name
        self,
        *,
        featuresCol: str | list[str] | Mapping[str, Any] | None = None,  # noqa: N803
        tracking_uri: str | None = None,
        **params: Any,
    ) -> Self:
        """Set some of the parameters.

        Raises :class:`ConfigError` for a parameter that does not exist, an invalid value, and credentials in a URI.
        """
        for name in params:
            if not self.hasParam(name):
                known = nearest(name, [param.name for param in self.params])
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}; {known}")
        if tracking_uri and without_credentials(tracking_uri) != tracking_uri:
            raise ConfigError(
                f"tracking_uri: {tracking_uri} contains credentials, which would be saved with the estimator; leave it"
                " out and set MLFLOW_TRACKING_URI, or set user and password as MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD"
            )
        Train.checked({name: value for name, value in params.items() if name in self.FIELDS}, place=type(self).__name__)
        if featuresCol is not None:
            self.setFeaturesCol(featuresCol)
        given = {"tracking_uri": tracking_uri, **params}
        self._set(**{name: value for name, value in given.items() if value is not None})
        return self

    @override
    def write(self) -> EstimatorWriter:
        """A writer of the parameters and the version of their format."""
        return EstimatorWriter(self)

    @classmethod
    @override
    def read(cls) -> EstimatorReader:
        """A reader of what :meth:`write` wrote."""
        return EstimatorReader(cls)

    @override
    def fitMultiple(
        self, dataset: DataFrame, paramMaps: Sequence[dict[Param[Any], Any]]
    ) -> Iterator[tuple[int, FittedModel]]:
        """Fit once per map, whenever the iterator is asked for the next model; several threads may ask at a time.

        Maps that differ only in how a network is trained share one prepared copy of the rows. It is made when the
        first of these fits needs it, and removed when the last one has ended or failed. If the iterator is abandoned
        earlier, its copies are removed when it is garbage-collected, at the latest when Python exits.
        """
        estimators = [self.copy(each) for each in paramMaps]
        wanted = [each._preparation() for each in estimators]
        shared = {each: SharedRows(dataset, each, fits=fits) for each, fits in Counter(wanted).items()}
        caller = active_run()

        def fit(index: int) -> FittedModel:
            with under(caller):  # the grid search calls this in its own threads, which have no active run
                return estimators[index]._train(dataset, shared[wanted[index]])

        return _FitMultipleIterator(fit, len(estimators))

    @override
    def _fit(self, dataset: DataFrame) -> FittedModel:
        return self._train(dataset, SharedRows(dataset, self._preparation(), fits=1))

    def _preparation(self) -> Preparation:
        """The parameters that decide what the prepared copy of the rows holds."""
        given: dict[str, Any] = {each.name: self.getOrDefault(each) for each in self.params if self.isDefined(each)}
        return Preparation(
            task=self.TASK,
            features=tuple(self.getFeaturesCols()),
            inputs=json.dumps(given["inputs"]) if "inputs" in given else None,
            label=self.getLabelCol(),
            weight=given.get("weightCol"),
            qid=given.get("qidCol"),
            held_out=given.get("validationIndicatorCol"),
            validation=given["validation"],
            missing=given.get("missing"),
            sparse=given["sparse"],
            seed=given["seed"],
            num_ranks=given.get("num_ranks"),
            store=given["store"],
        )

    def _train(self, dataset: DataFrame, shared: SharedRows) -> FittedModel:
        """Train on the prepared copy of the rows, and release it, whether training succeeds or fails."""
        tracking_uri = self.getOrDefault(self.tracking_uri) if self.isSet(self.tracking_uri) else None
        tracking = Tracking(uri=tracking_uri)
        if self.isSet(self.experiment):
            tracking = tracking.model_copy(update={"experiment": self.getOrDefault(self.experiment)})
        with shared:
            folder = f"{self.getOrDefault(self.store)}/{uuid.uuid4().hex}"
            recipe = {name: self.getOrDefault(name) for name in self.FIELDS}
            settings = Train.checked(recipe | {"run_dir": f"{folder}/runs"}, place=type(self).__name__)
            rows = shared.prepared()
            trained = train(
                rows.dataset,
                settings,
                cluster=Cluster(num_ranks=rows.num_ranks),
                tracking=tracking,
                spark=dataset.sparkSession,
            )
        model = self.MODEL(
            trained.model_uri,
            tracking_uri=tracking_uri,
            means=rows.means,
            summary=TrainingSummary.of(trained),
        )
        code = settings.model.partition(":")[0] if isinstance(settings.model, str) else settings.model.__module__
        model.trusted_modules = [code]  # this code has already run here
        return self._copyValues(model)


class TorchClassifier(_TorchEstimator, ClassifierColumns):
    """Trains a network that classifies rows, on ranks of the running cluster. Runs on the driver.

    ``featuresCol`` is one of three: the name of a column of vectors, arrays of numbers or numbers; a list of such
    columns; or a mapping from the names of the network's arguments to columns, or to settings as in ``prepare.inputs``.
    ``labelCol`` holds whole numbers, texts or truth values. The other columns are pyspark.ml's ``predictionCol``,
    ``probabilityCol``, ``rawPredictionCol``, ``weightCol`` and ``validationIndicatorCol``. All other arguments are
    those of :class:`sparkdl.Train` (``model``, ``epochs``, ``learning_rate``, ``patience`` …), and

    * ``num_ranks``: the number of training processes; each takes one task slot. By default as many as there are slots.
    * ``validation``: the share of the rows that decides which epoch was best, unless ``validationIndicatorCol`` is set.
    * ``missing``: if it is set, features that equal it, or are NaN or null, are replaced by the mean of the other
      training rows, while fitting and in the fitted model. If it is not set, NaN and null are errors.
    * ``contributionsCol``: if it is set, the model adds a vector with the contribution of each feature to the predicted
      class's ``rawPrediction``, or to the predicted number, by integrated gradients from a row of zeros. Its last
      element is the model's output for that row of zeros. The sum of all is the prediction, within some percent.
    * ``sparse``: whether vectors stay sparse until a batch is trained on.
    * ``store``: a folder that driver and executors reach, for prepared data and checkpoints.
    * ``experiment``, ``tracking_uri``: where MLflow logs each fit. The URI must not contain credentials, because
      parameters are shown, logged and saved as they are.

    Fitting raises what :func:`sparkdl.prepare` and :func:`sparkdl.train` raise, and
    :class:`~sparkdl.errors.DataError` for columns that are missing or of another type.
    """

    TASK, MODEL = "classification", TorchClassificationModel


class TorchRegressor(_TorchEstimator):
    """Trains a network that predicts a number, on ranks of the running cluster. Runs on the driver.

    ``labelCol`` holds numbers. Everything else is as in :class:`TorchClassifier`, except that there are no
    ``probabilityCol`` and ``rawPredictionCol``.
    """

    TASK, MODEL = "regression", TorchRegressionModel


class TorchRanker(_TorchEstimator, GroupColumn):
    """Trains a network that ranks the rows within each group, on ranks of the running cluster. Runs on the driver.

    ``labelCol`` holds the relevance of a row, a number from 0 to 31. ``qidCol`` (by default ``qid``) holds the group of
    a row, a whole number or a text. A group has one weight and at most 4,096 rows, and is held out as a whole;
    ``batch_size`` counts groups. Everything else is as in :class:`TorchRegressor`.
    """

    TASK, MODEL = "ranking", TorchRankingModel
