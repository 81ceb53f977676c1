"""A rank, and how it runs the user's function. Runs on a rank."""

import os
import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from sparkdl.cluster.backend import LaunchBackend
from sparkdl.cluster.devices import limited_threads, own_cores, retained_memory
from sparkdl.cluster.heartbeat import MAX_TEXT, Heartbeat
from sparkdl.cluster.logs import captured_output, own_streams
from sparkdl.cluster.pickling import unpickled_function
from sparkdl.cluster.preemption import NoticeWatch
from sparkdl.cluster.rendezvous import Place, RendezvousAddress
from sparkdl.cluster.sender import Sender

__all__ = ["Assignment", "Rank", "RankResult", "current_rank", "describe_failure", "run_rank"]

_current: "Rank | None" = None


@dataclass(frozen=True)
class Rank:
    """One of the processes of a run: its place, its device, and its connection to the driver."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    device: str
    """``cpu`` or ``cuda:i``."""
    threads: int
    """The number of threads for this rank: its share of the host's cores."""
    _sender: Sender = field(repr=False, compare=False)
    _heartbeat: Heartbeat = field(repr=False, compare=False)

    @property
    def stop_requested(self) -> bool:
        """Whether the driver has requested that all ranks stop in order.

        Ranks may see the request at different steps, so they have to agree on the last step.
        """
        return self._sender.stop_requested

    def beat(self, step: int | None = None) -> None:
        """Report that this rank makes progress, and its step; see :class:`Timeouts`."""
        self._heartbeat.beat(step)

    def send(self, kind: str, **payload: Any) -> None:
        """Send ``{"kind": kind, **payload}`` as JSON (at most 1 MiB) to the driver's ``on_message``."""
        self._sender.send("message", {"kind": kind, **payload})

    def log(self, text: str) -> None:
        """Print a text on the driver, without the rank in front, and regardless of the log verbosity."""
        self._sender.send("print", {"text": text})


@dataclass(frozen=True)
class Assignment:
    """The data that the driver passes to every rank of a run, inside Spark's task or through a pipe."""

    function: bytes = field(repr=False)
    """The pickled function of a :class:`Rank`."""
    channel: tuple[str, int]
    rendezvous: RendezvousAddress = field(repr=False)
    secret: bytes = field(repr=False)
    backend: LaunchBackend | None
    """The library by which ranks exchange tensors; None if they do not."""
    capture_output: bool
    lease: float
    """If ranks meet on rank 0's host: they end after so many seconds without the client."""
    stack_after: float | None = None
    """A rank sends its stack to the driver after so many seconds without progress."""
    own_process: bool = False
    """Whether the rank runs in its own process, so that nothing that the function leaves behind affects another run."""
    preemption_notice: str | None = None
    """The source of notices that a host is about to be taken away; see ``cluster.preemption_notice``."""


@dataclass(frozen=True)
class RankResult:
    """How a rank ended: its pickled result, or None if it failed; then it has reported its error to the driver."""

    rank: int
    result: bytes | None


def current_rank() -> Rank | None:
    """The rank that this process currently is; None outside of a run."""
    return _current


def run_rank(assignment: Assignment, place: Place, *, device: str, threads: int) -> RankResult:
    """Run the function as the rank at ``place``, and restore the process's state afterwards.

    The backend's environment is set before the function is unpickled. A failure is reported over the channel at once;
    then the backend disconnects, so that ranks that wait for this one fail quickly, too.
    """
    global _current
    hello: dict[str, Any] = {
        "rank": place.rank,
        "task": place.task,
        "host": place.host,
        "machine": socket.gethostname(),
        "process": os.getpid(),
    }
    sender = Sender(assignment.channel, secret=assignment.secret, **hello)
    waits_in = assignment.backend.modules if assignment.backend else ()
    heartbeat = Heartbeat(sender, place.rank, waits_in=waits_in, stack_after=assignment.stack_after)
    where = (place.rank, place.size, place.local_rank, place.local_size, place.host)
    rank = Rank(*where, device, threads, _sender=sender, _heartbeat=heartbeat)
    output = (
        captured_output(lambda lines: sender.send("log", {"lines": lines}))
        if assignment.capture_output
        else own_streams()
    )
    backend = assignment.backend
    notice = assignment.preemption_notice if place.local_rank == 0 else None
    watch = NoticeWatch(notice, place.rank, sender) if notice else nullcontext()
    cores = own_cores(device, place.local_rank, place.local_size, threads)
    result = None
    _current = rank
    try:
        with heartbeat, watch, cores, limited_threads(threads), retained_memory(), output:
            try:
                variables = backend.environment(place, assignment.rendezvous, device) if backend else {}
                variables["OMP_NUM_THREADS"] = str(threads)
                with _environment(variables), unpickled_function(assignment.function) as function:
                    result = _picklable(function(rank))
            except BaseException as error:
                follows = backend is not None and any(map(backend.is_echo, _causes(error)))
                sender.send("failure", {**describe_failure(error), "follows": follows, "step": heartbeat.step})
            finally:
                if backend:
                    backend.disconnect()
                heartbeat.wait_for_executor()
    finally:
        _current = None
        sender.close()
    return RankResult(place.rank, result)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Within this context, these environment variables are set for the whole process."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _picklable(result: Any) -> bytes:
    try:
        return cloudpickle.dumps(result)  # type: ignore[no-any-return]
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__qualname__}, which cannot be pickled ({error}); return plain"
            " values, arrays or state dicts"
        ) from None


def describe_failure(error: BaseException) -> dict[str, Any]:
    """The fields of a failure for the driver. The traceback starts at the user's code."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return {
        "type": _full_name(type(error)),
        "reason": str(error)[:MAX_TEXT],
        "text": text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}\n…\n{text[-MAX_TEXT // 2 :]}",
    }


def _full_name(kind: type[BaseException]) -> str:
    """The name as a traceback shows it: with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
    while error:
        yield error
        error = error.__cause__ or error.__context__
