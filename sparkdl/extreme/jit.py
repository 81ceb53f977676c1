"""Loops for a CPU: compiled by Numba when they are first used, and run in as many threads as PyTorch would use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import torch

__all__ = ["compiled", "in_threads"]


def compiled(**options: Any) -> Any:
    """A decorator that compiles a function at its first call and keeps the result on disk, if there is a place for it.

    Nothing that a compiled function calls may come from another file: Numba looks at the age of its own one to know
    what is out of date.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache folder can be written to
            return numba.njit(nogil=True, **options)(function)

    return decorate


def in_threads(function: Callable[..., None], count: int, *arguments: Any, at_once: int = 1) -> None:
    """Call ``function(start, stop, ...)`` for about equal parts of ``count`` rows, each of whole groups of rows."""
    threads = min(torch.get_num_threads(), -(-count // at_once))
    if threads <= 1:
        function(0, count, *arguments)
        return
    bounds = [at_once * (part * -(-count // at_once) // threads) for part in range(threads)] + [count]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(function, *part, *arguments) for part in pairwise(bounds)]:
            done.result()
