"""Python's collector of garbage, kept from going through a million objects of libraries, none of which is garbage."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["end_without_collection", "no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect nothing in this block, which imports PyTorch or MLflow: a sixth of the time that it takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_without_collection() -> None:
    """Let this process end two seconds sooner: Python would look for garbage in what is given back anyway."""
    atexit.register(gc.freeze)
