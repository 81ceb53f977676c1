"""Exchange by torch.distributed (Li et al., 2020, arXiv 2006.15704): Gloo between CPUs, NCCL between GPUs.

Processes find each other through a store. Here this is the run's rendezvous server on the driver, which answers only
ranks of the run. Gloo itself has no authentication: a process that connects to a rank's port before another rank does
takes that rank's place. Therefore ranks first prove to each other that they know the run's token.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import prod
from typing import ClassVar

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from sparkdl.collectives.backend import Backend, Meeting, Seat
from sparkdl.collectives.communicator import HOST, Arrival, Communicator, Messenger, ReduceOp, Wait, bytes_of
from sparkdl.collectives.gpus import check_each_has_its_own, check_is_there
from sparkdl.collectives.meeting import MeetingStore
from sparkdl.collectives.vectors import joined, put_back
from sparkdl.errors import ConfigError

__all__ = ["ExchangeError", "TorchBackend", "TorchCommunicator"]

MEETING_SECONDS = 120  # a rank may import for a minute before it connects
PROOF_SECONDS = 30
EXCHANGE_SECONDS = 7 * 24 * 3600  # Gloo's timeout; heartbeats notice a rank that does not answer much earlier
MEETING = "SPARKDL_MEETING"  # variable with the address of the rendezvous server: host:port/token
_met: Counter[str] = Counter()
"""How often this process has used each rendezvous server: each use needs its own keys."""


class ExchangeError(RuntimeError):
    """An exchange between ranks has failed: another rank has ended, or does not belong to the run."""


class TorchBackend(Backend):
    """torch.distributed as a backend. It also sets the environment variables of PyTorch's own launcher."""

    name: ClassVar[str] = "torch"
    modules: ClassVar[tuple[str, ...]] = ("torch.distributed",)

    @override
    def environment(self, place: Seat, meeting: Meeting, device: str) -> dict[str, str]:
        return {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.size),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(place.local_size),
            "GLOO_SOCKET_IFNAME": meeting.interface,
            "NCCL_SOCKET_IFNAME": meeting.interface,
            HOST: place.host,
            MEETING: f"{meeting.address}:{meeting.port}/{meeting.token}",
        }

    @override
    def connect(self, device: torch.device | None = None) -> Communicator:
        check_is_there(device)
        address, _, token = os.environ.get(MEETING, "").partition("/")
        rank, size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if token else (0, 1)
        store: distributed.Store = MeetingStore(address, token) if token else distributed.HashStore()
        _met[token] += 1
        with _failures_named():
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if device and device.type == "cuda" else "gloo",
                store=distributed.PrefixStore(str(_met[token]), store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=MEETING_SECONDS),
            )
        communicator = TorchCommunicator(distributed.group.WORLD, store)
        try:
            communicator.allow(PROOF_SECONDS)
            _prove(communicator, token.encode())
            check_each_has_its_own(communicator, device)
            communicator.allow(EXCHANGE_SECONDS)
        except BaseException:
            communicator.close()
            raise
        return communicator

    @override
    def is_echo(self, error: BaseException) -> bool:
        return isinstance(error, ExchangeError | distributed.DistError) or "gloo/transport" in str(error)

    @override
    def disconnect(self) -> None:
        if distributed.is_initialized():
            distributed.destroy_process_group()


class TorchCommunicator(Messenger):
    """The ranks of one of PyTorch's process groups."""

    def __init__(
        self, group: distributed.ProcessGroup, store: distributed.Store, parent: Communicator | None = None
    ) -> None:
        super().__init__(parent)
        self._group = group
        self._store = store  # the group uses it, but keeps no reference that prevents its collection

    def allow(self, seconds: float) -> None:
        """Set the timeout of all later exchanges."""
        self._group.set_timeout(timedelta(seconds=seconds))

    @property
    @override
    def rank(self) -> int:
        return int(self._group.rank())

    @property
    @override
    def size(self) -> int:
        return int(self._group.size())

    @override
    def split(self, color: int) -> "TorchCommunicator":
        colors = [int(each) for each in self.all_gather(torch.tensor(color))]
        ranks = distributed.get_process_group_ranks(self._group)
        members = [rank for rank, other in zip(ranks, colors, strict=True) if other == color]
        # The members are in its name: otherwise groups that are split at the same time would mix up their addresses.
        group = distributed.new_group(members, use_local_synchronization=True)
        return TorchCommunicator(group, self._store, parent=self)

    @override
    def all_reduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        if tensor.dtype in (torch.bfloat16, torch.float16):  # their sums would overflow, or be rounded at every rank
            return self.all_reduce(tensor.float(), op=op).to(tensor.dtype)
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self._counted(tensor), _failures_named():
            distributed.all_reduce(total, group=self._group)
        if op == "mean":
            total = total / self.size if total.is_floating_point() or total.is_complex() else total // self.size
        return total

    @override
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Wait:
        message = joined(tensors)
        message.div_(self.size)  # before the sum, which might overflow otherwise
        with self._counted(*tensors), _failures_named():
            work = distributed.all_reduce(message, group=self._group, async_op=True)

        def wait() -> None:
            with self._counted(), _failures_named():
                work.wait()
            put_back(message, tensors)

        return wait

    @override
    def start_all_gather(self, tensor: torch.Tensor, *, name: str) -> Arrival:
        gathered = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with self._counted(tensor), _failures_named():
            work = distributed.all_gather(
                [bytes_of(each) for each in gathered], bytes_of(tensor.contiguous()), self._group, async_op=True
            )
        wait = self._waiting(work)

        def arrived() -> list[torch.Tensor]:
            wait()
            return gathered

        return arrived

    @override
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        copy = tensor.clone(memory_format=torch.contiguous_format)
        with self._counted(tensor), _failures_named():
            distributed.broadcast(bytes_of(copy), group=self._group, group_src=root)
        return copy

    @override
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int = 0) -> Wait:
        _check_device(tensor)
        with self._counted(tensor), _failures_named():
            work = distributed.isend(bytes_of(tensor.contiguous()), group=self._group, group_dst=target, tag=tag)
        return self._waiting(work)

    @override
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int = 0) -> Wait:
        _check_device(tensor)
        if not tensor.is_contiguous():
            raise ValueError("the tensor to receive into has to be contiguous")
        with _failures_named():
            work = distributed.irecv(bytes_of(tensor), group=self._group, group_src=source, tag=tag)
        return self._waiting(work)

    @override
    def barrier(self) -> None:
        with self._counted(), _failures_named():
            distributed.barrier(self._group)

    @property
    def group(self) -> distributed.ProcessGroup:
        """The process group of these ranks, for PyTorch's own functions."""
        return self._group

    def mesh(self, device: torch.device) -> DeviceMesh:
        """The device mesh of these ranks, for PyTorch's sharded models with tensors on such devices."""
        return DeviceMesh.from_group(self._group, device.type)

    def gather_into(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Overwrite ``whole`` with the tensors of all ranks, concatenated; ``own`` may be this rank's view of it."""
        with self._counted(own), _failures_named():
            distributed.all_gather_single(whole, own, group=self._group)

    def scatter_sum(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Reduce-scatter: overwrite ``own`` with this rank's part of the sum of ``whole`` over ranks.

        Gloo's own implementation sends as much as an all-reduce; between CPUs, each rank sums its own part instead.
        """
        with self._counted(whole), _failures_named():
            if whole.is_cuda:
                distributed.reduce_scatter_single(own, whole, group=self._group)
                return
            parts = torch.empty_like(whole)
            distributed.all_to_all_single(parts, whole, group=self._group)
        torch.sum(parts.view(self.size, -1), dim=0, out=own.view(-1))

    def all_to_all(self, rows: torch.Tensor, *, sent: Sequence[int], taken: Sequence[int]) -> torch.Tensor:
        """Send rows to all ranks, and return the rows that all ranks send to this one, by rank; of any PyTorch type.

        The first ``sent[0]`` of ``rows`` are for rank 0, and so on; ``taken`` has the number of rows from each rank.
        """
        arrived = rows.new_empty(sum(taken), *rows.shape[1:])
        size = rows.element_size() * prod(rows.shape[1:])
        with self._counted(rows), _failures_named():
            distributed.all_to_all_single(
                bytes_of(arrived),
                bytes_of(rows.contiguous()),
                [size * count for count in taken],
                [size * count for count in sent],
                group=self._group,
            )
        return arrived

    @override
    def close(self) -> None:
        # If a rank has died, ranks that are not its neighbours wait until its neighbours close the group.
        if distributed.is_initialized() and self._group == distributed.group.WORLD:
            distributed.destroy_process_group()

    def _waiting(self, work: distributed.Work | None) -> Wait:
        def wait() -> None:
            with self._counted(), _failures_named():
                if work is not None:
                    work.wait()

        return wait


def _check_device(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:  # NCCL runs one operation at a time: two ranks that both receive first would deadlock
        raise ConfigError("ranks with GPUs do not send messages in pairs; set train.strategy.topology to ring")


def _prove(communicator: TorchCommunicator, token: bytes) -> None:
    """Have all ranks prove to each other that they know the token. Raises :class:`ExchangeError` when one does not.

    Each proof covers the nonces of all ranks, so that proofs cannot be recorded and replayed.
    """
    try:
        nonces = b"".join(_gathered(communicator, secrets.token_bytes(16)))
        proofs = _gathered(communicator, _proof(token, communicator.rank, nonces))
    except ExchangeError as error:
        raise ExchangeError(
            f"the ranks could not prove to each other within {PROOF_SECONDS} s that they belong to the run: one of"
            f" them has ended, or another process on their network has connected in its place ({error})"
        ) from error
    for rank, proof in enumerate(proofs):
        if not hmac.compare_digest(proof, _proof(token, rank, nonces)):
            raise ExchangeError(
                f"the process that connected as rank {rank} does not know the run's secret: it does not belong to"
                " this run. Let ranks listen where no others are (spark.driver.host decides on which interface)"
            )


def _proof(token: bytes, rank: int, nonces: bytes) -> bytes:
    return hmac.digest(token, b"rank %d" % rank + nonces, hashlib.sha256)


def _gathered(communicator: TorchCommunicator, content: bytes) -> list[bytes]:
    found = communicator.all_gather(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return [bytes(each.tolist()) for each in found]


@contextmanager
def _failures_named() -> Iterator[None]:
    """Raise failures of exchanges as :class:`ExchangeError`, to distinguish them from errors in the user's code."""
    try:
        yield
    except ExchangeError:
        raise
    except RuntimeError as error:
        # Removes the source file and the advice from Gloo's message, which do not help here.
        raise ExchangeError(re.sub(r"^\[\S+\] |\. This is .*", "", str(error).partition("\n")[0])) from error
