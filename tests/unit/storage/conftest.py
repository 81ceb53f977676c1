"""Places for files: this machine, an S3 server, and a folder with the renaming of HDFS."""

import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder in either place."""
    if request.param == "local":
        return str(tmp_path)
    request.getfixturevalue("s3")
    return "s3://tests/folder"


class Hdfs(LocalFileSystem):
    """A folder with the renaming of HDFS, as its specification of file systems has it: into a folder that is there."""

    protocol = "webhdfs"
    renamed = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("webhdfs://"))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        with self.renamed:
            if self.isdir(path2):
                path2 = f"{path2}/{Path(path1).name}"
            if self.exists(path2):
                return  # WebHDFS answers "false", which fsspec does not tell
            Path(path1).rename(path2)


fsspec.register_implementation("webhdfs", Hdfs, clobber=True)


@pytest.fixture
def hdfs(tmp_path: Path) -> str:
    return f"webhdfs://{tmp_path}"
