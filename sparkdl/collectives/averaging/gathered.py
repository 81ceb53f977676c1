"""Messages that cannot be added up: every rank receives the messages of all ranks, and adds up their decoded values."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision
from sparkdl.collectives.communicator import Communicator
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["Gathered"]


class Gathered(Averager):
    """Encodes a vector as a shorter message, whose length depends on the vector's length alone.

    For messages of k bytes, a rank receives k (n - 1) bytes: this suits methods that send a small part of the values.
    """

    memory: ClassVar[float] = 0.0
    """The factor with which the errors of earlier messages are added to the next vector. 1 is error feedback (Stich et
    al., 2018, arXiv 1809.07599), which biased messages need to converge; 0 is for unbiased messages."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._unsent: dict[str, torch.Tensor] = {}

    @abstractmethod
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        """The message for a vector: bytes, shape ``(length,)``."""

    @abstractmethod
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """The sum of decoded messages, as a new vector like this one."""

    def added(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        """What a vector adds to the values to be sent: by default, the vector itself."""
        return vector

    def result(self, mean: torch.Tensor, *, key: str) -> torch.Tensor:
        """The result of an exchange, from the mean of all decoded messages."""
        return mean

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        vector = joined(tensors)
        arriving = self._communicator.start_all_gather(self.message(vector, key=key), name=key)
        yield
        mean = self.total(arriving(), vector).div_(self._communicator.size)
        put_back(self.result(mean, key=key), tensors)

    def message(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        """The message for a vector and the errors of earlier ones; keeps the message's own error."""
        if not self.memory:
            return self.encode(vector, key=key)
        unsent = self._unsent.setdefault(key, torch.zeros_like(vector))
        torch.add(self.added(vector, key=key), unsent, alpha=self.memory, out=unsent)
        message = self.encode(unsent, key=key)
        unsent.sub_(self.total([message], unsent))
        return message

    @override
    def own_state(self) -> dict[str, Any]:
        return {"unsent": self._unsent}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        self._unsent = dict(own["unsent"])
