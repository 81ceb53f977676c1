"""Environment variables: some for a while, and those that our own processes start with."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

__all__ = ["HUGE_PAGES", "SharedEnvironment", "environment"]

HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Lets PyTorch ask Linux for pages of 2 MB for its large tensors, whose addresses are looked up 512 times less often:
up to a tenth of what meta-models take to train and to decode. PyTorch reads it once, at a process's first tensor."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put back what was there. Runs anywhere; all threads see them."""
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


class SharedEnvironment:
    """The same for users that overlap, as threads do: set for the first of them, and put back after the last."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._users = 0
        self._held = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._held.enter_context(environment(self._values))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._held.close()
