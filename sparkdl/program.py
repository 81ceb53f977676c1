"""The program's own modules: those beside its script or notebook, which executors lack. Runs on the driver."""

import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["is_the_programs", "pickled_by_value", "program_folders", "running_script"]

_INSTALLED = {"site-packages", "dist-packages"}
_script: Path | None = None
"""A script that runs on ranks in place of this process's own script."""


def program_folders() -> list[Path]:
    """The folder of the running script, and the current folder, which is that of a notebook. Runs on the driver."""
    script = _script or getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(script).absolute().parent] if script else []
    return list(dict.fromkeys([*folders, Path.cwd()]))


@contextmanager
def running_script(path: Path) -> Iterator[None]:
    """Within this context, the program is this script, so that modules beside it count as the program's own."""
    global _script
    before, folder = _script, str(path.absolute().parent)
    _script = path
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        _script = before
        sys.path.remove(folder)


def is_the_programs(path: Path) -> bool:
    """Whether a file is below one of the program's folders, and neither installed nor a part of Python."""
    if _INSTALLED & set(path.parts):
        return False
    python = Path(sysconfig.get_path("stdlib"))
    return not path.is_relative_to(python) and any(path.is_relative_to(folder) for folder in program_folders())


@contextmanager
def pickled_by_value() -> Iterator[None]:
    """Within this context, Spark pickles the program's own modules by value, so that tasks need not import them.

    For functions that Spark calls in tasks, such as those of a ``pyspark.ml`` stage written in Python. Several threads
    may enter at a time.
    """
    from pyspark import cloudpickle  # PySpark's own copy, without type hints

    pickles: Any = cloudpickle

    with _registering:
        registered = pickles.list_registry_pickle_by_value()
        ours = [module for module in _own_modules() if _users[module.__name__] or module.__name__ not in registered]
        for module in ours:
            pickles.register_pickle_by_value(module)
            _users[module.__name__] += 1
    try:
        yield
    finally:
        with _registering:
            for module in ours:
                _users[module.__name__] -= 1
                if not _users[module.__name__]:
                    pickles.unregister_pickle_by_value(module)


_registering = threading.Lock()
_users: Counter[str] = Counter()
"""For each module, how many threads are inside :func:`pickled_by_value`."""


def _own_modules() -> list[ModuleType]:
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    mine = [name for name, file in files.items() if file and name != "__main__" and not _is_sparkdl(name)]
    return [sys.modules[name] for name in mine if is_the_programs(Path(str(files[name])).absolute())]


def _is_sparkdl(name: str) -> bool:
    return name.partition(".")[0] == __name__.partition(".")[0]
