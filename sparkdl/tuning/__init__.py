"""A search over settings: its trials are runs on the slots that are there, several at a time."""

from sparkdl.tuning.tune import TunedModel, check_tune, tune

__all__ = ["TunedModel", "check_tune", "tune"]
