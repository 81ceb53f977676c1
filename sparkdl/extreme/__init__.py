"""MACH: many classes hashed into few buckets, many small models, and the way back from buckets to classes."""

from sparkdl.extreme.decode import Decoder, TopK
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.hashing import BucketHash, FeatureHash
from sparkdl.extreme.metrics import Evaluation, evaluate
from sparkdl.extreme.plan import Plan, plan_extreme
from sparkdl.extreme.train import TrainedEnsemble, train_extreme

__all__ = [
    "BucketHash",
    "Decoder",
    "Ensemble",
    "Evaluation",
    "FeatureHash",
    "Plan",
    "TopK",
    "TrainedEnsemble",
    "evaluate",
    "plan_extreme",
    "train_extreme",
]
