"""Communication between ranks, through Horovod or torch.distributed."""

from sparkdl.collectives.averaging import Averager, Ring, create_averager
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.backend import Backend
from sparkdl.collectives.choice import create_backend
from sparkdl.collectives.communicator import Communicator, Messenger, Wait, is_expanded
from sparkdl.collectives.distributed import TorchBackend, TorchCommunicator
from sparkdl.collectives.gradients import GradientAverager
from sparkdl.collectives.horovod import HorovodBackend
from sparkdl.collectives.means import agree, start_means
from sparkdl.collectives.noise import GradientNoise
from sparkdl.collectives.shared_memory import shared_copies, split_by_memory
from sparkdl.collectives.sparse_gradients import sparse_tables, values_of
from sparkdl.collectives.torchrun import TorchrunBackend

__all__ = [
    "Averager",
    "Backend",
    "Communicator",
    "GradientAverager",
    "GradientNoise",
    "HorovodBackend",
    "Messenger",
    "Ring",
    "TorchBackend",
    "TorchCommunicator",
    "TorchrunBackend",
    "Wait",
    "agree",
    "create_averager",
    "create_backend",
    "is_expanded",
    "message_of",
    "parts_of",
    "shared_copies",
    "sparse_tables",
    "split_by_memory",
    "start_means",
    "values_of",
]
