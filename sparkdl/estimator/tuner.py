"""A search over an estimator's parameters by cross-validation, as a tuner of ``pyspark.ml``. Runs on the driver."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean, pstdev
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.ml import Estimator, Model, Pipeline
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel
from pyspark.ml.util import MLWriter
from pyspark.sql import DataFrame
from typing_extensions import override

from sparkdl.errors import ConfigError, TrainingError
from sparkdl.estimator.estimators import TorchClassifier, TorchRanker, TorchRegressor
from sparkdl.settings import Settings, Tune
from sparkdl.settings.explain import nearest
from sparkdl.settings.keys import set_key
from sparkdl.tuning.study import TrialStudy
from sparkdl.tuning.trial_records import TrialRecord

__all__ = ["TorchTuner"]

OURS = TorchClassifier, TorchRegressor, TorchRanker


class TorchTuner(CrossValidator):
    """A ``CrossValidator`` with a search space in place of a grid: Optuna chooses the values of each trial.

    ``space`` maps parameters of the estimator, or of the estimator in a pipeline, to values as in ``tune.space``:
    ``{"learning_rate": {"log": [1e-4, 1e-1]}, "model_options.hidden": [[64], [128, 64]]}``. ``trials`` and ``sampler``
    are those of ``tune``; ``estimator``, ``evaluator``, ``numFolds``, ``foldCol``, ``seed``, ``parallelism`` and
    ``collectSubModels`` those of :class:`pyspark.ml.tuning.CrossValidator`. ``parallelism`` trials run at a time, and
    share one prepared copy of each fold's rows.

    Fitting returns pyspark.ml's ``CrossValidatorModel``: ``bestModel``, fitted on all rows, and ``avgMetrics`` and
    ``stdMetrics`` over the folds, one entry per trial, in the order of ``getEstimatorParamMaps()``. The entry of a
    trial whose loss became NaN is NaN. Raises :class:`~sparkdl.errors.ConfigError` for parameters that the estimator
    does not have, and what :meth:`TorchClassifier.fit` raises. Runs on the driver.
    """

    space: Param[dict[str, Any]] = Param(Params._dummy(), "space", "parameters to search, and their values", dict)
    trials: Param[int] = Param(Params._dummy(), "trials", "how many settings are tried", TypeConverters.toInt)
    sampler: Param[str] = Param(
        Params._dummy(), "sampler", "how values are chosen: see tune.sampler", TypeConverters.toString
    )

    def __init__(
        self,
        *,
        estimator: "Estimator[Any] | None" = None,
        evaluator: Evaluator | None = None,
        space: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._setDefault(trials=20, sampler="tpe", seed=0)
        given = {"estimator": estimator, "evaluator": evaluator, "space": space, **params}
        for name in given:
            if not self.hasParam(name):
                known = nearest(name, [param.name for param in self.params])
                raise ConfigError(f"TorchTuner has no parameter {name!r}; {known}")
        self._set(**{name: value for name, value in given.items() if value is not None})

    @override
    def write(self) -> MLWriter:
        """Raises :class:`ConfigError`: save the fitted model or the estimator instead."""
        raise ConfigError("a TorchTuner cannot be saved; save its model (fit(...).write()), or its estimator")

    @override
    def _fit(self, dataset: DataFrame) -> CrossValidatorModel:
        estimator, evaluator = self.getEstimator(), self.getEvaluator()
        settings, figure = self._settings(), _figure(evaluator)
        make_map = partial(_param_map, estimator)
        study = TrialStudy(settings, [figure])
        records: list[TrialRecord] = []
        maps: list[dict[Param[Any], Any]] = []
        metrics: list[list[float]] = []
        models: list[list[Model]] = [[] for _ in range(self.getNumFolds())]
        folds = [(train.cache(), held_out.cache()) for train, held_out in self._kFold(dataset)]
        try:
            while len(records) < settings.budget:
                batch = []
                for _ in range(min(self.getParallelism(), settings.budget - len(records))):
                    batch.append(TrialRecord(len(records), study.ask(records, len(records))))
                    records.append(batch[-1])
                maps += (tried := [make_map(record.values) for record in batch])
                found = [self._fit_fold(fold, models[number], tried) for number, fold in enumerate(folds)]
                for record, of_folds in zip(batch, zip(*found, strict=True), strict=True):
                    metrics.append(list(of_folds))
                    record.history = [{figure: fmean(of_folds)}]
                    record.state = "finished" if math.isfinite(fmean(of_folds)) else "failed"
        finally:
            for train, held_out in folds:
                train.unpersist()
                held_out.unpersist()
        known = [record for record in records if record.state == "finished"]
        if not known:
            raise TrainingError(
                f"the loss became NaN or infinite in all {len(records)} trials; search smaller learning rates"
            )
        sign = 1 if evaluator.isLargerBetter() else -1
        best = max(known, key=lambda record: sign * record.history[0][figure])
        averages, deviations = [fmean(each) for each in metrics], [pstdev(each) for each in metrics]
        fitted = estimator.fit(dataset, maps[best.number])
        kept = models if self.getCollectSubModels() else None
        model = self._copyValues(CrossValidatorModel(fitted, averages, kept, deviations))
        return model._set(estimatorParamMaps=maps)  # type: ignore[no-any-return]

    def _fit_fold(
        self, fold: tuple[DataFrame, DataFrame], models: list[Model], maps: Sequence[dict[Param[Any], Any]]
    ) -> list[float]:
        """The metric of each map on the held-out rows, in the order of ``maps``; NaN if the training failed."""
        train, held_out = fold
        evaluator, fits = self.getEvaluator(), self.getEstimator().fitMultiple(train, maps)
        collect = self.getCollectSubModels()

        def fit(number: int) -> tuple[float, Model | None]:
            try:
                model = fits.fitSingleModel(number)  # type: ignore[attr-defined]
            except TrainingError:
                return math.nan, None
            return evaluator.evaluate(model.transform(held_out, maps[number])), model if collect else None

        with ThreadPoolExecutor(len(maps)) as pool:
            # Threads inherit Spark's local properties, such as the job group, from the caller.
            targets = [inheritable_thread_target(partial(fit, number)) for number in range(len(maps))]
            found: list[tuple[float, Model | None]] = list(pool.map(lambda target: target(), targets))
        models += [model for _, model in found if model is not None]
        return [metric for metric, _ in found]

    def _settings(self) -> Tune:
        """The search as settings of the section ``tune``. Raises :class:`ConfigError`."""
        if not self.isDefined(self.space) or not self.getOrDefault(self.space):
            raise ConfigError("TorchTuner: space is missing; set it to the parameters to search, and their values")
        given = {name: self.getOrDefault(name) for name in ("space", "sampler", "seed")}
        if self.isSet(self.trials) or given["sampler"] != "grid":
            given["trials"] = self.getOrDefault(self.trials)
        settings = Tune.checked(given, place="TorchTuner")
        _, stage = _tuned_stage(self.getEstimator())
        for key in settings.space:
            name = key.partition(".")[0]
            if not stage.hasParam(name):
                known = nearest(name, [param.name for param in stage.params])
                raise ConfigError(f"TorchTuner: space: {type(stage).__name__} has no parameter {name!r}; {known}")
        return settings


def _figure(evaluator: Evaluator) -> str:
    """The name of a figure that improves in the same direction as the evaluator's metric."""
    return "validation_accuracy" if evaluator.isLargerBetter() else "validation_loss"


def _tuned_stage(estimator: "Estimator[Any]") -> "tuple[Estimator[Any], Any]":
    """The estimator, and the stage of it whose parameters are searched. Raises :class:`ConfigError`."""
    stages = estimator.getStages() if isinstance(estimator, Pipeline) else [estimator]
    found = [stage for stage in stages if isinstance(stage, OURS)]
    if len(found) != 1:
        raise ConfigError(
            "TorchTuner searches parameters of one TorchClassifier, TorchRegressor or TorchRanker, alone or in a"
            f" pipeline; this estimator has {len(found)} of them. For others use pyspark.ml's CrossValidator"
        )
    return estimator, found[0]


def _param_map(estimator: "Estimator[Any]", values: Mapping[str, Any]) -> dict[Param[Any], Any]:
    """A trial's values as pyspark.ml's ``fit`` takes them; a key such as ``model_options.hidden`` changes one entry."""
    _, stage = _tuned_stage(estimator)
    tree: dict[str, Any] = {}
    for key in sorted(values, key=lambda key: key.count(".")):
        name = key.partition(".")[0]
        if name not in tree:
            tree[name] = stage.getOrDefault(name) if stage.isDefined(name) else None
            tree[name] = dict(tree[name]) if isinstance(tree[name], Mapping) else tree[name]
        set_key(tree, key, values[key], section=Settings, what=f"{key} of a trial")
    return {stage.getParam(name): value for name, value in tree.items()}
