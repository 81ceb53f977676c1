"""Networks as stages of ``pyspark.ml``: estimators, and the models that they fit."""

from sparkdl.estimator.estimators import TorchClassifier, TorchRanker, TorchRegressor
from sparkdl.estimator.fitted import TorchClassificationModel, TorchRankingModel, TorchRegressionModel
from sparkdl.estimator.summary import TrainingSummary
from sparkdl.estimator.tuner import TorchTuner

__all__ = [
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchRanker",
    "TorchRankingModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "TorchTuner",
    "TrainingSummary",
]

TorchEstimator, TorchModel = TorchClassifier, TorchClassificationModel
"""The former names of the classifier and its model. What was saved under these names can still be loaded."""
