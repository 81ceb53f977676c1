"""The heartbeat of a rank: its step, whether it waits for other ranks, and its stack if it makes no progress."""

import ctypes
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, Self

from sparkdl.cluster.own_executor import is_stopped, own_executor
from sparkdl.cluster.sender import Sender

__all__ = ["HEARTBEAT_SECONDS", "MAX_TEXT", "Heartbeat", "name_thread"]

HEARTBEAT_SECONDS = 1.0
MAX_TEXT = 50_000  # the most characters of a message, traceback or stack: escaped as JSON, they fit into one frame
PR_SET_NAME = 15  # linux/prctl.h
RUNNERS = (f"{__package__}.rank", f"{__package__}.local")  # modules that call the user's function


class Heartbeat:
    """Tells the driver every second that this process is alive, from a separate thread. Runs on a rank.

    It watches the thread that creates it. ``waits_in`` are prefixes of the names of modules in which that thread waits
    for other ranks. With ``stack_after``, the stack of that thread is sent if :meth:`beat` was not called for so many
    seconds.
    """

    def __init__(
        self, sender: Sender, rank: int, *, waits_in: tuple[str, ...] = (), stack_after: float | None = None
    ) -> None:
        self.step: int | None = None
        """The last step that was passed to :meth:`beat`."""
        self._beats = 0
        self._sender, self._rank, self._waits_in, self._stack_after = sender, rank, waits_in, stack_after
        self._watched = threading.get_ident()
        self._executor = own_executor()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-heartbeat", daemon=True)

    def beat(self, step: int | None = None) -> None:
        """Record that the watched thread makes progress, and its step, if given."""
        if step is not None:
            self.step = step
        self._beats += 1

    def wait_for_executor(self) -> None:
        """Wait until the executor is not stopped. Otherwise nobody would report that it is, once this rank has left."""
        while is_stopped(self._executor):
            time.sleep(HEARTBEAT_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        name_thread(f"rank {self._rank}")
        beats, moved, sent = -1, 0.0, ""
        while not self._ended.wait(HEARTBEAT_SECONDS):
            now = time.monotonic()
            if beats != self._beats:
                beats, moved, sent = self._beats, now, ""
            frame = sys._current_frames().get(self._watched)
            body: dict[str, Any] = {"step": self.step, "beats": beats, "waiting": _is_in(frame, self._waits_in)}
            if is_stopped(self._executor):
                body["executor_stopped"] = True
            if self._stack_after is not None and now - moved >= self._stack_after and (stack := _stack(frame)) != sent:
                body["stack"] = sent = stack
            del frame  # a frame keeps the function's local variables alive, such as the previous step's graph
            try:
                self._sender.send("heartbeat", body)
            except OSError:
                return  # the driver is gone: the channel ends this process


def name_thread(name: str) -> None:
    """Name the thread, so that system tools (``ps -L``, ``top -H``, ``py-spy``) show which process is which rank."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_NAME, name.encode())


def _is_in(frame: FrameType | None, modules: tuple[str, ...]) -> bool:
    """Whether a thread is in one of these modules, and so waits for other ranks."""
    while frame:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(modules):
            return True
        frame = frame.f_back
    return False


def _stack(frame: FrameType | None) -> str:
    """The stack of a thread from the user's function on, most recent call last."""
    frames = []
    while frame and frame.f_globals.get("__name__") not in RUNNERS:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    text = "".join(traceback.StackSummary.extract(iter(reversed(frames))).format())
    return text[-MAX_TEXT:]
