"""Files that are never in memory as a whole."""

import errno
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.storage import list_folder, read_file, writing

from ...s3_server import S3Server

CONTENT = [b"a" * 100_000, memoryview(b"b" * 7)]


def write(folder: str) -> str:
    """A file whose name is its digest."""
    with writing(folder) as file:
        for content in CONTENT:
            file.write(content)
        file.put_as = file.sha256
    assert file.size == 100_007
    return file.put_as


@pytest.mark.parametrize("place", ["a folder", "s3"])
def test_it_is_called_by_its_digest_and_nothing_else_is_left(place: str, tmp_path: Path, s3: S3Server) -> None:
    folder = f"{tmp_path}/new" if place == "a folder" else "s3://tests/new"
    name = write(folder)
    content = b"".join(CONTENT)
    assert name == hashlib.sha256(content).hexdigest() and read_file(f"{folder}/{name}") == content
    assert [entry.name for entry in list_folder(folder)] == [name]


def test_what_was_not_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), writing(str(tmp_path)) as file:
        file.put_as = "half"
        file.write(b"half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import resource, signal, sys, torch
from sparkdl.storage import writing
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with writing(sys.argv[1]) as file:
        file.put_as = "weights"
        torch.save({"first": torch.zeros(10), "second": torch.zeros(1 << 20)}, file)
except OSError as error:
    sys.exit(error.errno)
"""


def test_a_full_disk_is_said_whatever_the_writer_makes_of_it(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], timeout=120, check=False)
    assert ended.returncode == errno.EFBIG
    assert not list(tmp_path.iterdir())
