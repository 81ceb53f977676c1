"""Many replicas, one model: the training loop, its recipe, its checkpoints, and how replicas agree.

`train` is what the driver calls. Nothing is imported here: ranks import this room too, and have no use for MLflow.
"""
