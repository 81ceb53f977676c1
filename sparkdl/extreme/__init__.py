"""MACH: many classes hashed into few buckets, many small models, and the decoding from buckets to classes.

Nothing is imported here, because tasks import this package, too, and do not need MLflow.
"""
