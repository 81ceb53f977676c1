"""What travels when ranks take the mean of their tensors, and where it is added up: one file per answer."""

from sparkdl.collectives.averaging.averager import Averager, Exchange, advance, finish
from sparkdl.collectives.averaging.ring import Ring

__all__ = ["Averager", "Exchange", "Ring", "advance", "finish"]
