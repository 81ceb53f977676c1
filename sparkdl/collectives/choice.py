"""Which library ranks exchange tensors by. Runs on the driver, once for a job."""

from importlib.util import find_spec
from typing import Literal

from sparkdl.collectives.backend import Backend
from sparkdl.collectives.distributed import TorchBackend
from sparkdl.collectives.horovod import HorovodBackend
from sparkdl.errors import ConfigError
from sparkdl.extras import how_to_install

__all__ = ["create_backend"]


def create_backend(name: Literal["auto", "horovod", "torch"], *, point_to_point: bool = False) -> Backend:
    """The backend that ``cluster.backend`` names; ``auto`` is Horovod where it is installed, else torch.

    With ``point_to_point``, ranks also speak to single others, so that ``auto`` is torch. Raises :class:`ConfigError`
    when Horovod is asked for and cannot do that, or is not installed.
    """
    if point_to_point and name != "torch":
        if name == "auto":
            return TorchBackend()
        raise ConfigError(
            "train.strategy.topology lets single ranks speak to each other, which Horovod cannot; set cluster.backend"
            " to 'torch', or the topology to 'ring'"
        )
    installed = find_spec("horovod") is not None
    if name == "horovod" and not installed:
        raise ConfigError(
            f"cluster.backend is 'horovod', and Horovod is not installed here: {how_to_install('classic')}, or set"
            " cluster.backend to 'torch'"
        )
    return HorovodBackend() if installed and name != "torch" else TorchBackend()
