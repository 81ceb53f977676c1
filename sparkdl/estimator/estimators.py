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
    """What estimators share."""

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

        Raises :class:`ConfigError` for one that does not exist or cannot be, and for credentials in a URI.
        """
        for name in params:
            if not self.hasParam(name):
                known = nearest(name, [param.name for param in self.params])
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}; {known}")
        if tracking_uri and without_credentials(tracking_uri) != tracking_uri:
            raise ConfigError(
                f"tracking_uri: {tracking_uri} has credentials, which saving the estimator would write down; leave it"
                " out and set MLFLOW_TRACKING_URI, or give user and password as MLFLOW_TRACKING_USERNAME and"
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
        """A writer of the parameters, and of the format that they are in."""
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
        """Fit once for each map, when the iterator is asked for the next model; several threads may ask.

        Maps that differ only in how a network is trained share one prepared copy of the rows, which is made when the
        first of them needs it, and dropped when the last of them has been fitted, or has failed. Of an iterator that is
        left before, the copies go with it, and with Python at the latest.
        """
        estimators = [self.copy(each) for each in paramMaps]
        wanted = [each._preparation() for each in estimators]
        shared = {each: SharedRows(dataset, each, fits=fits) for each, fits in Counter(wanted).items()}
        caller = active_run()

        def fit(index: int) -> FittedModel:
            with under(caller):  # a thread of the grid search's own asks
                return estimators[index]._train(dataset, shared[wanted[index]])

        return _FitMultipleIterator(fit, len(estimators))

    @override
    def _fit(self, dataset: DataFrame) -> FittedModel:
        return self._train(dataset, SharedRows(dataset, self._preparation(), fits=1))

    def _preparation(self) -> Preparation:
        """What a fit needs of the rows."""
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
        """Train on the copy of the rows, and leave it, whether training ends well or not."""
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
        model.trusted_modules = [code]  # which has run here already
        return self._copyValues(model)


class TorchClassifier(_TorchEstimator, ClassifierColumns):
    """Trains a network on ranks of the running cluster, to tell classes apart. Runs on the driver.

    ``featuresCol`` holds vectors or arrays of numbers, or is a list of such columns and of numbers, or a mapping of the
    names of a network's arguments to columns or to what ``prepare.inputs`` takes; ``labelCol`` whole
    numbers, texts or truth values. The other columns are pyspark.ml's ``predictionCol``, ``probabilityCol``,
    ``rawPredictionCol``, ``weightCol`` and ``validationIndicatorCol``. All other arguments are those of
    :class:`sparkdl.Train` (``model``, ``epochs``, ``learning_rate``, ``patience`` …), and

    * ``num_ranks``: how many training processes; each takes one task slot. By default as many as there are slots.
    * ``validation``: the share of the rows that decides which epoch was best, where no column does.
    * ``missing``: where it is set, features that equal it, or are NaN or null, count as missing: the mean of the other
      training rows stands in for them, here and in the fitted model. Otherwise they are an error.
    * ``contributionsCol``: where it is set, the model adds a vector: what each feature contributes to the predicted
      class's ``rawPrediction``, or to the predicted number, by integrated gradients from a row of zeros, and last
      what the model answers to this row. The sum is the prediction, except for an error of some percent.
    * ``sparse``: whether vectors are kept sparse until a batch is trained on.
    * ``store``: a folder that driver and executors reach, for prepared data and checkpoints.
    * ``experiment``, ``tracking_uri``: where MLflow logs each fit. Credentials have no place in the URI, because
      parameters are shown, logged and saved as they are.

    Fitting raises what :func:`sparkdl.prepare` and :func:`sparkdl.train` raise, and
    :class:`~sparkdl.errors.DataError` for columns that are missing or of another type.
    """

    TASK, MODEL = "classification", TorchClassificationModel


class TorchRegressor(_TorchEstimator):
    """Trains a network on ranks of the running cluster, to predict a number. Runs on the driver.

    ``labelCol`` holds numbers; everything else is as with :class:`TorchClassifier`, but for the columns of
    probabilities.
    """

    TASK, MODEL = "regression", TorchRegressionModel


class TorchRanker(_TorchEstimator, GroupColumn):
    """Trains a network on ranks of the running cluster, to order the rows of a group. Runs on the driver.

    ``labelCol`` says how relevant a row is, by a number from 0 to 31, and ``qidCol`` (by default ``qid``) which rows
    are of one group, by a whole number or a text. A group has one weight, is held out as a whole, and has at most 4,096
    rows; ``batch_size`` counts groups. Everything else is as with :class:`TorchRegressor`.
    """

    TASK, MODEL = "ranking", TorchRankingModel
