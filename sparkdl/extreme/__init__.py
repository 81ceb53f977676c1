"""MACH: many classes hashed into few buckets, many small models, and the way back from buckets to classes."""

from sparkdl.extreme.decode import Decoder, TopK
from sparkdl.extreme.hashing import BucketHash, FeatureHash
from sparkdl.extreme.metrics import Evaluation, evaluate
from sparkdl.extreme.plan import Plan, plan

__all__ = ["BucketHash", "Decoder", "Evaluation", "FeatureHash", "Plan", "TopK", "evaluate", "plan"]
