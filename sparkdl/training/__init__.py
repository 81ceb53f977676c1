"""Many replicas, one model: the training loop, its recipe, its checkpoints, and how replicas agree."""

from sparkdl.training.train import TrainedModel, train

__all__ = ["TrainedModel", "train"]
