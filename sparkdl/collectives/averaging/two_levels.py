"""Two levels: first within each host, then between hosts, so that a slow network carries each value once per host.

For k bytes and h hosts, a host sends 2 k (h - 1) / h bytes to another one. A ring over all n ranks that visits each
host once sends 2 k (n - 1) / n bytes from host to host.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange
from sparkdl.collectives.averaging.server import Server
from sparkdl.collectives.communicator import Communicator, Messenger

__all__ = ["TwoLevels"]


class TwoLevels(Server):
    """One rank of each host is the server of the others. Servers average among themselves, with compression if set.

    ``hosts`` has each rank's host, the same on all ranks. If an attempt starts on other hosts, the errors that servers
    had kept for feedback are lost.
    """

    def __init__(self, messenger: Messenger, hosts: Sequence[str], between: Callable[[Communicator], Averager]) -> None:
        super().__init__(messenger.split(list(dict.fromkeys(hosts)).index(hosts[messenger.rank])))
        self._share = len(set(hosts)) / messenger.size  # so that the mean of all servers' sums is that of all ranks
        is_server = self._messenger.rank == 0
        servers = messenger.split(0 if is_server else 1)
        self._between = between(servers) if is_server else None

    @property
    @override
    def is_identity(self) -> bool:
        return False

    @override
    def agree(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        if self._between:
            yield from self._between.exchange(tensors, key=key)

    @override
    def end_epoch(self) -> None:
        if self._between:
            self._between.end_epoch()

    @override
    def state(self) -> dict[str, Any]:
        return self._between.state() if self._between else {}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        if self._between:
            self._between.load(state)

    @override
    def own_state(self) -> dict[str, Any]:
        return self._between.own_state() if self._between else {}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        if self._between and own:
            self._between.load_own(own)
