"""The process that Python workers are forked from."""

import importlib
import os
import subprocess
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from sparkdl.daemon import keep_unchanged_archives


def test_an_archive_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    archive = tmp_path / "modules.zip"

    def write(*names: str) -> None:
        with zipfile.ZipFile(archive, "w") as file:
            for name in names:
                file.writestr(f"{name}.py", "")

    reads: list[str] = []
    read_directory = zipimport._read_directory  # type: ignore[attr-defined]

    def read(path: str) -> object:
        reads.append(path)
        return read_directory(path)

    monkeypatch.setattr(zipimport, "_read_directory", read)
    write("archived_first")
    monkeypatch.syspath_prepend(str(archive))
    keep_unchanged_archives()
    importlib.import_module("archived_first")
    importlib.invalidate_caches()
    before = reads.count(str(archive))
    for _ in range(5):
        importlib.invalidate_caches()
    assert reads.count(str(archive)) == before
    write("archived_first", "archived_second")
    importlib.invalidate_caches()
    importlib.import_module("archived_second")
    for name in ("archived_first", "archived_second"):
        del sys.modules[name]


def test_a_package_that_cannot_be_imported_is_no_reason_not_to_fork_workers(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ValueError('numpy.dtype size changed')")
    environment = os.environ | {"SPARKDL_TASKS": "data", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "sparkdl.daemon"],
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert len(done.stdout) == 4, done.stderr.decode()  # the port at which Spark asks for workers
