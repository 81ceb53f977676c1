"""Pickles the user's function for ranks, with an error that names a part that cannot be pickled, and unpickles it."""

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from sparkdl.cluster.modules import importable, sources_for
from sparkdl.errors import ConfigError
from sparkdl.program import program_folders

__all__ = ["pickle_function", "unpickled_function"]

MAX_DEPTH = 4  # how many levels deep the part that cannot be pickled is searched


def pickle_function(function: Callable[..., Any]) -> bytes:
    """The pickled function with everything that it refers to and the program's own modules. Runs on the driver.

    :func:`unpickled_function` is the inverse. Raises :class:`ConfigError`, which names a part that cannot be pickled.
    """
    try:
        pickled: bytes = cloudpickle.dumps(function)
        return pickle.dumps((pickled, sources_for(pickled), [str(folder) for folder in program_folders()]))
    except Exception as error:
        path, value = _culprit(function, MAX_DEPTH)
        what = f"{path} (a {type(value).__module__}.{type(value).__qualname__})" if path else "it"
        raise ConfigError(
            f"cannot send the function {_name(function)!r} to the ranks: {what} cannot be pickled:"
            f" {type(error).__name__}: {error}. Create it inside the function, or pass plain values"
        ) from None


@contextmanager
def unpickled_function(content: bytes) -> Iterator[Callable[..., Any]]:
    """The function; within this context it can import the program's own modules. Runs on a rank or in a task.

    Raises ModuleNotFoundError for a module that is neither installed here nor the program's own.
    """
    pickled, sources, folders = pickle.loads(content)
    with importable(sources):
        try:
            function = pickle.loads(pickled)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the function needs the module {error.name!r}, which is not installed where ranks run, and was not"
                f" shipped because it is not below the program's folders on the driver ({', '.join(folders)}); install"
                " it on the executors, or put it into one of these folders",
                name=error.name,
            ) from None
        yield function


def _culprit(owner: Any, depth: int) -> tuple[str, Any]:
    """The deepest part that cannot be pickled, with its path; the path is empty if it is the owner itself."""
    for name, part in _parts(owner):
        if depth and not _can_be_pickled(part):
            below, value = _culprit(part, depth - 1)
            return f"{name}{below and '.'}{below}", value
    return "", owner


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object that are pickled with it, by name."""
    if isinstance(owner, functools.partial):
        yield from [(_name(owner.func), owner.func), *enumerate(owner.args), *owner.keywords.items()]  # type: ignore[misc]
    elif inspect.ismethod(owner):
        yield type(owner.__self__).__name__, owner.__self__
    elif inspect.isfunction(owner):
        names = inspect.getclosurevars(owner)
        yield from [*names.nonlocals.items(), *names.globals.items()]
        yield from ((name, parameter.default) for name, parameter in inspect.signature(owner).parameters.items())
    elif isinstance(owner, dict):
        yield from ((str(key), value) for key, value in owner.items())
    elif isinstance(owner, list | tuple | set):
        yield from ((str(position), value) for position, value in enumerate(owner))
    else:
        yield from getattr(owner, "__dict__", {}).items()


def _can_be_pickled(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)
