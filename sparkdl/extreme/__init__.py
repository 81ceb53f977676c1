"""MACH: many classes hashed into few buckets, many small models, and the way back from buckets to classes.

Nothing is imported here: tasks import this room too, and have no use for MLflow.
"""
