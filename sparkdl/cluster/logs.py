"""The output of ranks: captured at the file descriptors of a rank, and printed on the driver with the rank in front."""

import codecs
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tqdm import tqdm

__all__ = ["captured_output", "own_streams", "print_lines", "print_text"]

CHUNK_BYTES = 1 << 16  # a line longer than this is split; escaped as JSON, it still fits into one frame of the channel


@contextmanager
def captured_output(send: Callable[[list[str]], None]) -> Iterator[None]:
    """Hand every line that this process writes to stdout or stderr to ``send``, in order. Runs on a rank.

    The file descriptors are redirected, so that output of native libraries and child processes is captured, too. When
    the context ends, everything that was written in it has been sent.
    """
    end = b"\0" + secrets.token_hex(16).encode() + b"\n"
    read_fd, write_fd = os.pipe()
    saved = [(fd, os.dup(fd)) for fd in (1, 2)]
    _flush()
    for fd, _ in saved:
        os.dup2(write_fd, fd)
    reader = threading.Thread(target=_forward, args=(read_fd, end, send), name="sparkdl-logs", daemon=True)
    reader.start()
    try:
        with own_streams():
            yield
    finally:
        _flush()
        for fd, copy in saved:
            os.dup2(copy, fd)
            os.close(copy)
        os.write(write_fd, end)  # a child process may hold the pipe open, so this marks the end of the output
        os.close(write_fd)
        reader.join()
        os.close(read_fd)


@contextmanager
def own_streams() -> Iterator[None]:
    """Give a function its own ``sys.stdout`` and ``sys.stderr``. Runs on a rank.

    Whatever the function does to them (replace, wrap, close), the previous ones are restored for the next run.
    """
    before = sys.stdout, sys.stderr
    own = [  # kept: a stream that is garbage-collected closes its buffer, which the function may have wrapped
        os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False) for fd in (1, 2)
    ]
    sys.stdout, sys.stderr = own
    try:
        yield
    finally:
        _flush()
        sys.stdout, sys.stderr = before


def print_lines(rank: int, lines: Sequence[str]) -> None:
    """Print a rank's lines on the driver's stdout with the rank in front."""
    print_text("\n".join(f"[rank {rank}] {line}" for line in lines))


def print_text(text: str) -> None:
    """Print on the driver's stdout, above any progress bar. Characters that cannot be encoded are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    tqdm.write(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stdout)
    sys.stdout.flush()


def _forward(read_fd: int, end: bytes, send: Callable[[list[str]], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = b""
    text = ""
    ended = False
    while not ended and (chunk := os.read(read_fd, CHUNK_BYTES)):
        pending += chunk
        ended = end in pending
        if ended:
            ready, pending = pending[: pending.index(end)], b""
        else:  # a part of the mark may have arrived
            keep = len(end) - 1 if b"\0" in pending[-len(end) :] else 0
            ready, pending = pending[: len(pending) - keep], pending[len(pending) - keep :]
        *lines, text = (text + decoder.decode(ready, final=ended)).split("\n")
        if ended or len(text) >= CHUNK_BYTES:
            lines, text = [*lines, *([text] if text else [])], ""
        if lines:
            send(lines)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the function may have closed it, or replaced it by an object without flush
            stream.flush()
