"""Train deep networks on the Spark cluster you already have.

The public names of the project. They are imported when they are first used, so that a rank or a scoring task loads
only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.cli import main
    from sparkdl.cluster import get_session
    from sparkdl.config import load_settings
    from sparkdl.data import Dataset, check_prepare, fetch, open_source, prepare, split_rows
    from sparkdl.distributed_loader import dataloader
    from sparkdl.estimator import (
        TorchClassificationModel,
        TorchClassifier,
        TorchEstimator,
        TorchModel,
        TorchRanker,
        TorchRankingModel,
        TorchRegressionModel,
        TorchRegressor,
        TorchTuner,
        TrainingSummary,
    )
    from sparkdl.extreme.plan import plan_extreme
    from sparkdl.extreme.train import TrainedEnsemble, check_train_extreme, train_extreme
    from sparkdl.forms.compress import CompressedModel, check_compress, compress
    from sparkdl.planning.growth import growth_figure
    from sparkdl.planning.plan_training import plan_training
    from sparkdl.planning.train import check_train, train
    from sparkdl.planning.training_plan import TrainingPlan
    from sparkdl.runner import HorovodRunner, TorchRunner, checkpoint_dir, distributed
    from sparkdl.scoring.dataframe import score
    from sparkdl.scoring.output import check_output, write_predictions
    from sparkdl.serving import serve
    from sparkdl.settings import (
        Cluster,
        Compress,
        Extreme,
        FormGate,
        Gate,
        Prepare,
        Score,
        Settings,
        Source,
        Split,
        Stage,
        TimeSplit,
        Tracking,
        Train,
        Tune,
    )
    from sparkdl.tracking import page_command, sync
    from sparkdl.training.train import TrainedModel
    from sparkdl.tuning import TunedModel, check_tune, tune

__all__ = [
    "Cluster",
    "Compress",
    "CompressedModel",
    "Dataset",
    "Extreme",
    "FormGate",
    "Gate",
    "HorovodRunner",
    "Prepare",
    "Score",
    "Settings",
    "Source",
    "Split",
    "Stage",
    "TimeSplit",
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchRanker",
    "TorchRankingModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "TorchRunner",
    "TorchTuner",
    "Tracking",
    "Train",
    "TrainedEnsemble",
    "TrainedModel",
    "TrainingPlan",
    "TrainingSummary",
    "Tune",
    "TunedModel",
    "check_compress",
    "check_output",
    "check_prepare",
    "check_train",
    "check_train_extreme",
    "check_tune",
    "checkpoint_dir",
    "compress",
    "dataloader",
    "distributed",
    "fetch",
    "get_session",
    "growth_figure",
    "load_settings",
    "main",
    "open_source",
    "page_command",
    "plan_extreme",
    "plan_training",
    "prepare",
    "score",
    "serve",
    "split_rows",
    "sync",
    "train",
    "train_extreme",
    "tune",
    "write_predictions",
]

_HOMES = {
    "sparkdl.cli": ["main"],
    "sparkdl.cluster": ["get_session"],
    "sparkdl.config": ["load_settings"],
    "sparkdl.data": ["Dataset", "check_prepare", "fetch", "open_source", "prepare", "split_rows"],
    "sparkdl.distributed_loader": ["dataloader"],
    "sparkdl.estimator": [
        *["TorchClassificationModel", "TorchClassifier", "TorchEstimator", "TorchModel", "TorchRanker"],
        *["TorchRankingModel", "TorchRegressionModel", "TorchRegressor", "TorchTuner"],
        *["TrainingSummary"],
    ],
    "sparkdl.extreme.plan": ["plan_extreme"],
    "sparkdl.extreme.train": ["TrainedEnsemble", "check_train_extreme", "train_extreme"],
    "sparkdl.forms.compress": ["CompressedModel", "check_compress", "compress"],
    "sparkdl.planning.growth": ["growth_figure"],
    "sparkdl.planning.plan_training": ["plan_training"],
    "sparkdl.planning.train": ["check_train", "train"],
    "sparkdl.planning.training_plan": ["TrainingPlan"],
    "sparkdl.runner": ["HorovodRunner", "TorchRunner", "checkpoint_dir", "distributed"],
    "sparkdl.scoring.dataframe": ["score"],
    "sparkdl.scoring.output": ["check_output", "write_predictions"],
    "sparkdl.serving": ["serve"],
    "sparkdl.settings": [
        *[
            "Cluster",
            "Compress",
            "Extreme",
            "FormGate",
            "Gate",
            "Prepare",
            "Score",
            "Settings",
            "Source",
            "Split",
            "Stage",
            "TimeSplit",
            "Tracking",
            "Train",
            "Tune",
        ],
    ],
    "sparkdl.tuning": ["TunedModel", "check_tune", "tune"],
    "sparkdl.tracking": ["page_command", "sync"],
    "sparkdl.training.train": ["TrainedModel"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")
    import_module("sparkdl.stack").check_stack()
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
