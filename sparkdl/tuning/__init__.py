"""Hyperparameter search: its trials are training runs, several at a time on the cluster's slots."""

from sparkdl.tuning.tune import TunedModel, check_tune, tune

__all__ = ["TunedModel", "check_tune", "tune"]
