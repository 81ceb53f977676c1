"""The interface between a launch and the library by which ranks exchange tensors; see ``sparkdl.collectives``."""

from typing import Protocol

from sparkdl.cluster.rendezvous import Place, RendezvousAddress

__all__ = ["LaunchBackend"]


class LaunchBackend(Protocol):
    """A library such as Horovod. The driver sends it to every rank, where all of its methods run."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which a rank waits for other ranks, as prefixes of their names."""

    def environment(self, place: Place, meeting: RendezvousAddress, device: str) -> dict[str, str]:
        """The environment variables by which the user's function finds the other ranks.

        ``device`` is the rank's own: ``cpu`` or ``cuda:i``.
        """

    def is_echo(self, error: BaseException) -> bool:
        """Whether an error only follows from the failure of another rank."""

    def disconnect(self) -> None:
        """Close connections that the user's function has left open, so that ranks that wait for them fail at once."""
