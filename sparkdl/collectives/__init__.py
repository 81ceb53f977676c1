"""What ranks say to each other; Horovod is the default."""

from sparkdl.collectives.collectives import Collectives, is_expanded
from sparkdl.collectives.gradients import GradientAverager
from sparkdl.collectives.horovod import HorovodCollectives

__all__ = ["Collectives", "GradientAverager", "HorovodCollectives", "is_expanded"]
