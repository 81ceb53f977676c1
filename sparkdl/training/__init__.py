"""Training: the loop, its settings, its checkpoints, and how replicas are synchronised.

The driver calls `train`. Nothing is imported here, because ranks import this package, too, and do not need MLflow.
"""
