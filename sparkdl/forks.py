"""Starts processes on the driver in milliseconds, by forking a process that has already imported PyTorch.

The driver starts this process, the nursery, when it first needs a fork; it ends with the driver. Each fork has a parent
process of its own between itself and the nursery, which reports to the driver how the fork has ended.
"""

import atexit
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

__all__ = ["Fork", "preload", "serve"]

SLOW_TO_IMPORT = ("torch", "torch._dynamo", "horovod.torch")  # making an optimizer imports torch._dynamo
NUMBER = struct.Struct("<q")


class Fork:
    """A new process on the driver that calls ``main(result_fd)``, with the driver's environment, paths and streams.

    It has its own process session: Ctrl-C only reaches the driver, and processes that the fork starts are killed with
    it.
    """

    def __init__(self, main: Callable[[int], None]) -> None:
        """Start the process. Raises ChildProcessError if that fails."""
        pipes = [os.pipe() for _ in range(3)]
        (stdin, stdin_end), (result_end, result), (status_end, status) = pipes
        self.stdin: IO[bytes] = os.fdopen(stdin_end, "wb")
        self.result: IO[bytes] = os.fdopen(result_end, "rb")
        """The end of a pipe from which the data that the process writes to ``result_fd`` can be read."""
        self.returncode: int | None = None
        """The result of :meth:`wait`; None before."""
        self._one_asks = threading.Lock()
        self._status: IO[bytes] = os.fdopen(status_end, "rb", buffering=0)
        try:
            _Nursery.of_this_process().request(main, [stdin, 1, 2, result, status])
        finally:
            for fd in (stdin, result, status):
                os.close(fd)
        self.pid = self._told()
        if self.pid < 0:  # the process ended before it reported its id: this is its exit status
            raise ChildProcessError(f"the process ended with status {self.pid} before it started its work")

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended the process. Raises TimeoutError after ``timeout`` seconds."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutError
        with self._one_asks:
            if self.returncode is None:
                self.returncode = self._told()
        return self.returncode

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _told(self) -> int:
        """The next number that the fork's parent sends. Raises ChildProcessError if the nursery has ended."""
        told = self._status.read(NUMBER.size)
        if len(told) < NUMBER.size:
            raise ChildProcessError("the process from which others are forked has ended; see its messages above")
        return int(NUMBER.unpack(told)[0])


class _Nursery:
    """The driver's end of the process that forks."""

    _kept: "_Nursery | None" = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._owner = os.getpid()
        atexit.register(self._socket.close)

    @classmethod
    def of_this_process(cls) -> "_Nursery":
        with cls._lock:
            kept = cls._kept
            if kept is None or kept._owner != os.getpid() or kept._process.poll() is not None:
                kept = cls._kept = cls()
            return kept

    def request(self, main: Callable[[int], None], fds: list[int]) -> None:
        content = pickle.dumps((sys.path, dict(os.environ), str(Path.cwd()), pickle.dumps(main)))
        with self._lock, suppress(BrokenPipeError):  # Fork.wait raises an error if the nursery has ended
            socket.send_fds(self._socket, [NUMBER.pack(len(content))], fds)
            self._socket.sendall(content)


def serve(fd: int) -> None:
    """Import, then fork on the driver's requests until it ends. In a fork, returns when its work is done."""
    preload(SLOW_TO_IMPORT)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps the forks' parents, for which this process does not wait
    with socket.socket(fileno=fd) as driver:
        while True:
            head, fds, *_ = socket.recv_fds(driver, NUMBER.size, maxfds=5)
            if not head:
                return
            content = driver.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL)
            sys.path[:], environment, folder, function = pickle.loads(content)
            main = pickle.loads(function)  # later forks share the modules that this imports
            gc.freeze()  # a fork's garbage collector would write to, and so copy, all memory shared with this process
            if not os.fork():
                break
            for each in fds:
                os.close(each)
    _be_parent_or_fork(fds, environment, folder)
    main(fds[-2])


def _be_parent_or_fork(fds: list[int], environment: dict[str, str], folder: str) -> None:
    """Fork once more. The parent reports how the fork ends, and never returns; the fork takes the driver's streams."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = fds[-1]
    pid = os.fork()
    if pid:
        for fd in fds[:-1]:
            os.close(fd)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, NUMBER.pack(ended))
        os._exit(0)
    os.setsid()
    os.write(status, NUMBER.pack(os.getpid()))  # only now: the driver may kill the session as soon as it has the id
    os.close(status)
    for stream, fd in enumerate(fds[:3]):
        os.dup2(fd, stream)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def preload(names: Iterable[str]) -> None:
    """Import these modules, skipping those that fail, and let each fork reseed NumPy's random numbers."""
    for name in names:
        with suppress(Exception):  # a fork that needs the module raises the error itself
            importlib.import_module(name)
    if numpy := sys.modules.get("numpy"):  # Python's own generator reseeds itself after a fork
        os.register_at_fork(after_in_child=numpy.random.seed)
