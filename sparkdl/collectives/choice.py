"""Chooses the library by which ranks exchange tensors. Runs on the driver, once per job."""

from importlib.util import find_spec
from typing import Literal

from sparkdl.collectives.backend import Backend
from sparkdl.collectives.distributed import TorchBackend
from sparkdl.collectives.horovod import HorovodBackend
from sparkdl.errors import ConfigError
from sparkdl.extras import how_to_install

__all__ = ["create_backend"]


def create_backend(name: Literal["auto", "horovod", "torch"], *, needs_torch: str | None = None) -> Backend:
    """The backend that ``cluster.backend`` names; ``auto`` is Horovod where it is installed, else torch.

    ``needs_torch`` says what ``train.strategy`` needs that Horovod cannot do; ``auto`` is then torch. Raises
    :class:`ConfigError` when Horovod is requested but cannot do that, or is not installed.
    """
    if needs_torch and name == "horovod":
        raise ConfigError(
            f"train.strategy {needs_torch}, which Horovod cannot; set cluster.backend to 'torch' or 'auto', or choose"
            " another topology or compression, or no shards"
        )
    installed = find_spec("horovod") is not None
    if name == "horovod" and not installed:
        raise ConfigError(
            f"cluster.backend is 'horovod', and Horovod is not installed here: {how_to_install('classic')}, or set"
            " cluster.backend to 'torch'"
        )
    return HorovodBackend() if installed and name != "torch" and not needs_torch else TorchBackend()
