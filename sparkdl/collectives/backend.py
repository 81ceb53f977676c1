"""What a library has to answer so that ranks can exchange tensors through it."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["Backend", "Meeting", "Seat"]


class Seat(Protocol):
    """Where a rank is among the others, in Horovod's words."""

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

    Its clients show a token. ``interface`` is the network interface through which this rank reaches it, and on which
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
    """What ``cluster.backend`` calls it."""
    modules: ClassVar[tuple[str, ...]]
    """The modules in which a rank waits for other ranks, by the beginning of their names."""

    @abstractmethod
    def environment(self, place: Seat, meeting: Meeting, device: str) -> dict[str, str]:
        """The environment variables from which :meth:`connect` learns where the other ranks are. Runs on a rank.

        ``device`` is the rank's own: ``cpu`` or ``cuda:i``.
        """

    @abstractmethod
    def connect(self, device: torch.device | None = None) -> Communicator:
        """Meet all other ranks of the launch; without a launch, a single rank. Runs on every rank.

        ``device`` is where tensors will lie. The communicator is used as a context manager, which disconnects. Raises
        :class:`~sparkdl.errors.ConfigError` where NCCL is to exchange them and ranks have not a GPU each.
        """

    @abstractmethod
    def is_echo(self, error: BaseException) -> bool:
        """Whether an error says only that another rank has failed."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connections of this process, if there are any: ranks that wait for this one fail at once."""
