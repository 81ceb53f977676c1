"""Exchange by Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799): Gloo between CPUs, NCCL between GPUs.

Horovod itself is imported when a rank connects.
"""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.backend import Backend, Meeting, Seat
from sparkdl.collectives.communicator import HOST, Arrival, Communicator, ReduceOp, Wait, bytes_of
from sparkdl.collectives.gpus import check_each_has_its_own, check_is_there
from sparkdl.extras import require

__all__ = ["HorovodBackend", "HorovodCommunicator"]

GLOO_TIMEOUT_SECONDS = 120  # a rank may import for a minute before it connects; Horovod's default is 30 s
ECHOES = ("Horovod has been shut down", "Horovod initialization failed", "Horovod has not been initialized")


class HorovodBackend(Backend):
    """Horovod as a backend. ``hvd.init()`` in a function of the user's own finds the other ranks, too."""

    name: ClassVar[str] = "horovod"
    modules: ClassVar[tuple[str, ...]] = ("horovod",)

    @override
    def environment(self, place: Seat, meeting: Meeting, device: str) -> dict[str, str]:
        return {
            "HOROVOD_RANK": str(place.rank),
            "HOROVOD_SIZE": str(place.size),
            "HOROVOD_LOCAL_RANK": str(place.local_rank),
            "HOROVOD_LOCAL_SIZE": str(place.local_size),
            "HOROVOD_CROSS_RANK": str(place.cross_rank),
            "HOROVOD_CROSS_SIZE": str(place.cross_size),
            HOST: place.host,
            "HOROVOD_HOSTNAME": place.host,
            # Horovod requests http://ADDR:PORT/scope/key; with a path in ADDR every request carries the token,
            # and the PORT that Horovod adds becomes a part of the path that the server ignores.
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{meeting.address}:{meeting.port}/{meeting.token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
            "HOROVOD_GLOO_IFACE": meeting.interface,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # With cached responses, each rank decides by itself which gradients to fuse; ranks that decide differently
            # crash in Gloo ("op.preamble.length <= op.nbytes"). Without, rank 0 decides for all, at the same speed.
            "HOROVOD_CACHE_CAPACITY": "0",
            # A message is never fused with other tensors that happen to be ready: otherwise the order of a sum over
            # three or more ranks would depend on timing.
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
            "HOROVOD_DYNAMIC_PROCESS_SETS": "1",  # so that a communicator can be split
        }

    @override
    def connect(self, device: torch.device | None = None) -> Communicator:
        hvd = require("horovod.torch", extra="classic")
        check_is_there(device)
        hvd.init()
        communicator = HorovodCommunicator(hvd, hvd.global_process_set)
        if hvd.nccl_built():  # Gloo copies tensors on a GPU through the host's memory
            check_each_has_its_own(communicator, device)
        return communicator

    @override
    def is_echo(self, error: BaseException) -> bool:
        return type(error).__name__ == "HorovodInternalError" or any(echo in str(error) for echo in ECHOES)

    @override
    def disconnect(self) -> None:
        hvd = sys.modules.get("horovod.torch")
        if hvd and hvd.is_initialized():
            hvd.shutdown()


class HorovodCommunicator(Communicator):
    """The ranks of one of Horovod's process sets. Tensors on a GPU are reduced there if Horovod was built with NCCL."""

    def __init__(self, hvd: Any, process_set: Any, parent: "HorovodCommunicator | None" = None) -> None:
        super().__init__(parent)
        self._hvd, self._process_set = hvd, process_set
        self._known: dict[tuple[int, ...], Any] = parent._known if parent else {tuple(range(self.size)): process_set}
        """The existing process sets, by their ranks, because Horovod refuses to create one twice."""

    @property
    @override
    def rank(self) -> int:
        return int(self._process_set.rank())

    @property
    @override
    def size(self) -> int:
        return int(self._process_set.size())

    @override
    def split(self, color: int) -> Communicator:
        colors = [int(each) for each in self.all_gather(torch.tensor(color))]
        ranks = list(zip(self._process_set.ranks or range(self.size), colors, strict=True))
        groups = {}
        for each in sorted(set(colors)):  # all ranks create all groups, in the same order
            groups[each] = members = tuple(rank for rank, other in ranks if other == each)
            if members not in self._known:
                self._known[members] = self._hvd.add_process_set(members)
        return HorovodCommunicator(self._hvd, self._known[groups[color]], parent=self)

    @override
    def all_reduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        if tensor.dtype in (torch.bfloat16, torch.float16):  # Gloo does not add up the first, and the second overflows
            return self.all_reduce(tensor.float(), op=op).to(tensor.dtype)
        with self._counted(tensor):
            chosen = self._hvd.Sum if op == "sum" else self._hvd.Average
            return self._hvd.allreduce(tensor, op=chosen, process_set=self._process_set)  # type: ignore[no-any-return]

    @override
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Wait:
        average: dict[str, Any] = {"op": self._hvd.Average}
        if any(tensor.dtype == torch.float16 for tensor in tensors):  # divided first: a sum can overflow
            average = {"op": self._hvd.Sum, "prescale_factor": 1 / self.size}
        with self._counted(*tensors):
            handle = self._hvd.grouped_allreduce_async_(
                list(tensors), name=name, process_set=self._process_set, **average
            )

        def wait() -> None:
            with self._counted():
                self._hvd.synchronize(handle)

        return wait

    @override
    def start_all_gather(self, tensor: torch.Tensor, *, name: str) -> Arrival:
        with self._counted(tensor):
            handle = self._hvd.allgather_async(bytes_of(tensor.contiguous()), name=name, process_set=self._process_set)

        def arrived() -> list[torch.Tensor]:
            with self._counted():
                gathered = self._hvd.synchronize(handle)
            return list(gathered.view(tensor.dtype).reshape(self.size, *tensor.shape))

        return arrived

    @override
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        copy = tensor.clone(memory_format=torch.contiguous_format)
        members = self._process_set.ranks
        with self._counted(tensor):  # Horovod expects the root's number among all ranks
            world_root = members[root] if members else root
            self._hvd.broadcast_(bytes_of(copy), world_root, process_set=self._process_set)
        return copy

    @override
    def barrier(self) -> None:
        with self._counted():
            self._hvd.barrier(process_set=self._process_set)

    @override
    def close(self) -> None:
        if self._parent is None:
            self._hvd.shutdown()
