"""Ships files of a model to every executor, once per application. Runs on the driver."""

import hashlib
import shutil
import tempfile
import threading
from pathlib import Path
from zipfile import ZipFile

from pyspark.sql import SparkSession

from sparkdl.sessions import is_remote, ship_file

__all__ = ["digest_of", "ship", "shipping"]


def ship(spark: SparkSession, path: Path) -> str:
    """Let Spark ship a file, or a folder as a zip archive, to every executor. Returns its name there."""
    suffix = ".zip" if path.is_dir() else path.suffix
    name = f"sparkdl-{digest_of(path)[:32]}{suffix}"
    key = (spark.session_id if is_remote(spark) else str(spark.sparkContext.applicationId), name)  # type: ignore[attr-defined]
    with shipping:
        if key not in _shipped:
            folder = tempfile.TemporaryDirectory(prefix="sparkdl-ship-")  # kept: executors fetch it later
            if path.is_dir():
                _pack(path, Path(folder.name, name))
            else:
                shutil.copyfile(path, Path(folder.name, name))
            ship_file(spark, Path(folder.name, name))
            _shipped[key] = folder
    return name


shipping = threading.Lock()  # two threads may score the same model, but Spark accepts a file name only once
_shipped: dict[tuple[str, str], tempfile.TemporaryDirectory[str]] = {}  # removed when the driver's Python ends


def _pack(folder: Path, archive: Path) -> None:
    """Write all files of a folder to a zip archive, with their paths relative to the folder."""
    with ZipFile(archive, "w") as packed:
        for file in _files(folder):
            packed.write(file, file.relative_to(folder))


def digest_of(path: Path) -> str:
    """SHA-256 of a file's name and content, or of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else _files(path):
        digest.update(file.name.encode() if file == path else file.relative_to(path).as_posix().encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(item for item in folder.rglob("*") if item.is_file())
