"""Ships the program's own modules to ranks: files beside the script or the notebook, which executors lack.

Ranks get the sources of the modules that a pickled function refers to, and of all that these import, in the same
payload as the function. This works alike on embedded Spark, clusters and Spark Connect, writes nothing to executors'
disks, and imports classes under the same names as on the driver. The modules exist for one call only: a Python worker
that Spark reuses gets those of the next call.
"""

import ast
import importlib.abc
import importlib.util
import os
import pickletools
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from typing_extensions import override

from sparkdl.program import is_the_programs, program_folders

__all__ = ["ModuleSource", "importable", "imports_of", "sources_for"]

MAX_WORD = 500  # characters; a longer text is not a name
NOT_OURS_TO_SEND = {*sys.stdlib_module_names, "sparkdl", "pyspark", "py4j"}


class ModuleSource(NamedTuple):
    """One module."""

    text: str
    file: str
    """Its path on the driver, for tracebacks."""
    is_package: bool


def sources_for(pickled: bytes) -> dict[str, ModuleSource]:
    """The program's own modules that unpickling and calling may import, by name. Runs on the driver.

    A module is the program's own if its source is below one of :func:`program_folders`, and is neither installed nor a
    part of Python. Included are modules that settings name, and those that a function imports when it runs, but not
    those whose names it computes.
    """
    found: dict[str, ModuleSource] = {}
    words = {str(text) for _, text, _ in pickletools.genops(pickled) if isinstance(text, str)}
    names = {word.partition(":")[0] for word in words if len(word) < MAX_WORD}
    beside = {entry.name.partition(".")[0] for folder in program_folders() for entry in folder.iterdir()}
    _collect({name for name in names if name.partition(".")[0] in {*beside, *sys.modules}}, found)
    # `from package import module` inside a function appears as two words in its pickle
    _collect({f"{package}.{name}" for package in [*found] if found[package].is_package for name in names}, found)
    return found


def _collect(names: Iterable[str], found: dict[str, ModuleSource]) -> None:
    """Add the modules of these names, their packages, and all modules that these import."""
    open_names = set(names)
    while open_names:
        name = open_names.pop()
        if name in found or not all(part.isidentifier() for part in name.split(".")):
            continue
        source = _read(name)
        if source:
            found[name] = source
            open_names |= {name.rpartition(".")[0]} - {""}
            open_names |= imports_of(source.text, package=name if source.is_package else name.rpartition(".")[0])


def _read(name: str) -> ModuleSource | None:
    """The source of one of the program's own modules; None for other modules, and if there is no such module."""
    if name.partition(".")[0] in NOT_OURS_TO_SEND:
        return None
    for path in _places(name):
        if path.is_dir():  # a package without __init__.py
            return ModuleSource("", str(path / "__init__.py"), is_package=True)
        if is_the_programs(path):
            try:
                text = importlib.util.decode_source(path.read_bytes())
            except (OSError, SyntaxError, UnicodeDecodeError):
                return None  # importing it on the driver raises the error
            return ModuleSource(text, str(path), is_package=path.name == "__init__.py")
    return None


def _places(name: str) -> Iterator[Path]:
    """The possible paths of a module: where it was imported from, else below the folders of the import path."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        folders = [str(each) for each in getattr(module, "__path__", [])]
        if file and file.endswith(".py"):
            yield Path(file).absolute()
        elif not file and any(is_the_programs(Path(each)) for each in folders):
            yield Path(folders[0])
        return
    searched = {Path(entry or ".").absolute() for entry in sys.path}
    top, *below = name.split(".")
    if top in sys.modules and not _read(top):  # another module has this name
        return
    for folder in program_folders():
        path = folder.joinpath(top, *below)
        if folder in searched and is_the_programs(path):
            yield from filter(Path.is_file, (path / "__init__.py", path.with_name(f"{path.name}.py")))


def imports_of(text: str, *, package: str) -> set[str]:
    """The names that a module imports, anywhere in it. For ``from a import b``, both ``a`` and ``a.b``."""
    names: set[str] = set()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return names  # importing it on the driver raises the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names |= {module} | {f"{module}.{each.name}" for each in node.names}
    return names - {""}


@contextmanager
def importable(sources: Mapping[str, ModuleSource]) -> Iterator[None]:
    """Within this context, these modules can be imported, and hide others of their names. Runs on a rank or in a task.

    Several threads may enter with the same sources: they share the modules, and the last one to leave removes them.
    """
    with _entering:
        entered = next((each for each in _entered if each.sources == sources), None)
        if entered is None:
            entered = _Entered(sources, _Finder(sources), _taken(sources))
            sys.meta_path.insert(0, entered.finder)
            _entered.append(entered)
        entered.users += 1
    try:
        yield
    finally:
        with _entering:
            entered.users -= 1
            if not entered.users:
                _entered.remove(entered)
                sys.meta_path.remove(entered.finder)
                _taken(sources)
                sys.modules.update(entered.before)


@dataclass(eq=False)
class _Entered:
    """The modules that can be imported within the current context."""

    sources: Mapping[str, ModuleSource]
    finder: "_Finder"
    before: dict[str, ModuleType]
    """The modules that had their names before."""
    users: int = 0


_entering = threading.Lock()
_entered: list[_Entered] = []


def _taken(sources: Mapping[str, ModuleSource]) -> dict[str, ModuleType]:
    """Remove the modules of these names and their submodules from ``sys.modules``, and return them."""
    tops = {name.partition(".")[0] for name in sources}
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in tops}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds and loads modules from sources in memory."""

    def __init__(self, sources: Mapping[str, ModuleSource]) -> None:
        self._sources = sources

    @override
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in self._sources else None

    @override
    def is_package(self, fullname: str) -> bool:
        return self._sources[fullname].is_package

    @override
    def get_source(self, fullname: str) -> str:
        return self._sources[fullname].text

    @override
    def get_filename(self, fullname: str) -> str:
        return os.path.normpath(self._sources[fullname].file)
