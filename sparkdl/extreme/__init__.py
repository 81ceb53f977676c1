"""MACH: many classes hashed into few buckets, many small models, and the way back from buckets to classes."""

from sparkdl.extreme.decode import Decoder, TopK
from sparkdl.extreme.hashing import BucketHash, FeatureHash

__all__ = ["BucketHash", "Decoder", "FeatureHash", "TopK"]
