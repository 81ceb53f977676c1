"""The interface of the libraries by which ranks exchange tensors."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["Backend", "Meeting", "Seat"]


class Seat(Protocol):
    """A rank's position among the others, in Horovod's terms."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def local_rank(self) -> int: ...  # noqa: D102
    @property
    def local_size(self) -> int: ...  # noqa: D102
    @property
    def cross_rank(self) -> int: ...  # noqa: D102
    @property
    def cross_size(self) -> int: ...  # noqa: D102
    @property
    def host(self) -> str: ...  # noqa: D102


class Meeting(Protocol):
    """The server on the driver where the ranks of a run find each other's addresses.

    Its clients send a token. ``interface`` is the network interface through which this rank reaches it, and on which
    the rank is to listen; ``own_address`` is the rank's address there.
    """

    @property
    def address(self) -> str: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102
    @property
    def token(self) -> str: ...  # noqa: D102
    @property
    def interface(self) -> str: ...  # noqa: D102
    @property
    def own_address(self) -> str: ...  # noqa: D102


class Backend(ABC):
    """A library by which ranks exchange tensors. It is small and can be pickled: the driver sends it to every rank."""

    name: ClassVar[str]
    """The value of ``cluster.backend`` for this library."""
    modules: ClassVar[tuple[str, ...]]
    """Prefixes of the names of modules in which a rank waits for other ranks."""

    @abstractmethod
    def environment(self, place: Seat, meeting: Meeting, device: str) -> dict[str, str]:
        """The environment variables from which :meth:`connect` reads how to reach the other ranks. Runs on a rank.

        ``device`` is the rank's own: ``cpu`` or ``cuda:i``.
        """

    @abstractmethod
    def connect(self, device: torch.device | None = None) -> Communicator:
        """Connect to all other ranks of the launch; without a launch, there is a single rank. Runs on every rank.

        ``device`` is where tensors will be. The communicator is used as a context manager, which disconnects. Raises
        :class:`~sparkdl.errors.ConfigError` where NCCL is used and ranks do not have a GPU each.
        """

    @abstractmethod
    def is_echo(self, error: BaseException) -> bool:
        """Whether an error only means that another rank has failed."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close this process's connections, if there are any, so that ranks that wait for this one fail at once."""
