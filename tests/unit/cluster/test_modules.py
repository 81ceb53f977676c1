"""A program's own modules travel with its function: those that it needs, as they are now, and for one call."""

import importlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.modules import ModuleSource, importable
from sparkdl.cluster.pickling import pickle_function, unpickled_function

NET = """
import dataclasses
import lossy_functions
from parts_of_net import layers

@dataclasses.dataclass
class Shape:
    width: int = 3

class Base:
    def size(self):
        return 1

class Net(Base):
    def size(self):
        import lazy_helper
        return super().size() + lossy_functions.ONE + layers.two() + lazy_helper.FOUR + Shape().width
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project's folder, in which the program runs; it leaves no module behind."""
    for name, text in {
        "my_net.py": NET,
        "lossy_functions.py": "ONE = 1",
        "parts_of_net/__init__.py": "",
        "parts_of_net/layers.py": "from .numbers import TWO\ndef two(): return TWO",
        "parts_of_net/numbers.py": "TWO = 2",
        "parts_of_net/unused.py": "",
        "lazy_helper.py": "FOUR = 4",
        "passwords.py": "SECRET = 'hunter2'",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def elsewhere(content: bytes, monkeypatch: pytest.MonkeyPatch, project: Path, *arguments: Any) -> Any:
    """What the function returns in a process that has not the project's folder on its path."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if Path(entry) != project])
        patch.chdir("/")
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name in NEEDED]:
            patch.delitem(sys.modules, name)
        with unpickled_function(content) as function:
            return function(*arguments)


NEEDED = {
    "my_net",
    "lossy_functions",
    "parts_of_net",
    "parts_of_net.layers",
    "parts_of_net.numbers",
    "lazy_helper",
}


def make(kind: type, _: int) -> int:
    return kind().size()  # type: ignore[attr-defined,no-any-return]


def test_what_a_class_imports_travels_with_it_and_nothing_else_does(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_net  # type: ignore[import-not-found]
    import passwords  # type: ignore[import-not-found] # noqa: F401 - the program's, and no part of the function

    content = pickle_function(partial(make, my_net.Net))
    assert b"hunter2" not in content and b"FOUR = 4" in content
    assert elsewhere(content, monkeypatch, project, 0) == 1 + 1 + 2 + 4 + 3
    assert sys.modules["my_net"] is my_net


def test_an_import_path_in_a_setting_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(setting: str) -> Callable[[int], int]:
        def call(_: int) -> int:
            module, _, name = setting.partition(":")
            return getattr(importlib.import_module(module), name)().size()  # type: ignore[no-any-return]

        return call

    assert elsewhere(pickle_function(build("my_net:Net")), monkeypatch, project, 0) == 11


def test_an_import_inside_the_function_is_found_though_it_has_never_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(_: int) -> int:
        from parts_of_net import numbers  # type: ignore[import-not-found]

        return int(numbers.TWO)

    assert elsewhere(pickle_function(call), monkeypatch, project, 0) == 2


def test_a_worker_that_is_used_again_sees_the_new_source(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import my_net

    function = partial(make, my_net.Net)
    assert elsewhere(pickle_function(function), monkeypatch, project, 0) == 11
    (project / "lossy_functions.py").write_text("ONE = 100")
    assert elsewhere(pickle_function(function), monkeypatch, project, 0) == 110


def test_what_is_imported_for_a_call_is_gone_after_it() -> None:
    with importable({"of_one_call": ModuleSource("X = 1", "/project/of_one_call.py", is_package=False)}):
        import of_one_call  # type: ignore[import-not-found]

        assert of_one_call.X == 1 and of_one_call.__file__ == "/project/of_one_call.py"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("of_one_call")


def test_a_module_that_is_nowhere_is_named_with_what_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("away")
    (away / "distant_net.py").write_text("class Net:\n    def size(self): return 1")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(away)
        import distant_net  # type: ignore[import-not-found]

        content = pickle_function(partial(make, distant_net.Net))
    del sys.modules["distant_net"]
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match=r"'distant_net', which is not installed.*install it"):
        elsewhere(content, monkeypatch, project, 0)


def test_threads_of_one_process_share_the_modules_that_each_of_them_needs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pickle_function(importlib.import_module("my_net").Net().size)

    def sizes() -> list[int]:
        found = []
        for _ in range(50):
            with unpickled_function(content) as function:
                found.append(function())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if entry != str(project)])
        with ThreadPoolExecutor(4) as threads:
            of_threads = [threads.submit(sizes) for _ in range(4)]
        assert [each.result() for each in of_threads] == [[11] * 50] * 4
