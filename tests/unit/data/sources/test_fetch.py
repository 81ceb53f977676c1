import gzip
import hashlib
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sparkdl.data.sources.fetch import DATA_SETS, Published, _from_package, _problem, fetch
from sparkdl.errors import DataError

CONTENT = gzip.compress(b"eleven bytes", mtime=0)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine that publishes one small file."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "tiny.gz").write_bytes(CONTENT)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Add a data set of one small file to the table."""

    def add(*, address: str | None = None, folder: Path = tmp_path / "not installed", package: str = "") -> None:
        checksums = {"tiny.gz": hashlib.sha256(CONTENT).hexdigest()}
        monkeypatch.setitem(DATA_SETS, "tiny", Published(package, str(folder), checksums, address))

    return add


@pytest.fixture
def no_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine where apt does not exist."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture(scope="session")
def fashion_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real files, fetched the way this machine allows."""
    return fetch("fashion-mnist", tmp_path_factory.mktemp("data") / "fashion-mnist")


def test_fashion_mnist_arrives_with_all_four_files(fashion_mnist: Path) -> None:
    assert sorted(path.name for path in fashion_mnist.iterdir()) == sorted(DATA_SETS["fashion-mnist"].checksums)
    with gzip.open(fashion_mnist / "t10k-labels-idx1-ubyte.gz") as labels:
        assert len(labels.read()) == 8 + 10_000


def test_wordnet_arrives_with_its_synsets(tmp_path: Path) -> None:
    folder = fetch("wordnet", tmp_path)
    lines = (folder / "data.noun").read_text().splitlines()
    assert sum(not line.startswith("  ") for line in lines) == 82_115


def test_a_damaged_file_is_fetched_anew(fashion_mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = fashion_mnist / "t10k-labels-idx1-ubyte.gz"
    right = labels.read_bytes()
    labels.write_bytes(right[:100])
    fetch("fashion-mnist", fashion_mnist)
    assert labels.read_bytes() == right
    assert "checksums verified" in capsys.readouterr().err


def test_files_that_are_there_are_not_fetched_again(
    fashion_mnist: Path, no_apt: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch("fashion-mnist", fashion_mnist) == fashion_mnist
    assert capsys.readouterr().err == ""


def test_apt_works_where_the_package_lists_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("apt-get") is None:
        assert fetch("fashion-mnist", tmp_path).is_dir()  # nothing to promise about apt; the address must do
        return
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::State::lists "{tmp_path}/lists";\nAPT::Sandbox::User "root";\n')
    with monkeypatch.context() as patched:
        patched.setenv("APT_CONFIG", str(configuration))
        source = _from_package(DATA_SETS["fashion-mnist"], _empty(tmp_path / "work"))
    assert _problem(source, DATA_SETS["fashion-mnist"]) is None


def test_the_cache_folder_is_the_users(
    address: str, publish: Callable[..., None], no_apt: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    publish(address=address)
    assert fetch("tiny") == tmp_path / "cache" / "sparkdl" / "data" / "tiny"


def test_without_apt_the_files_come_from_the_published_address(
    address: str, publish: Callable[..., None], no_apt: None, tmp_path: Path
) -> None:
    publish(address=address)
    assert (fetch("tiny", tmp_path / "data") / "tiny.gz").read_bytes() == CONTENT


def test_an_installed_package_is_used_before_anything_is_downloaded(
    publish: Callable[..., None], no_apt: None, tmp_path: Path
) -> None:
    installed = _empty(tmp_path / "installed")
    (installed / "tiny.gz").write_bytes(CONTENT)
    publish(address=NOWHERE, folder=installed)
    assert (fetch("tiny", tmp_path / "data") / "tiny.gz").read_bytes() == CONTENT


def test_what_arrives_with_a_wrong_checksum_is_refused(
    address: str, publish: Callable[..., None], no_apt: None, tmp_path: Path
) -> None:
    (tmp_path / "site" / "tiny.gz").write_bytes(b"something else")
    publish(address=address)
    with pytest.raises(DataError, match=r"tiny\.gz has the checksum \w+, not"):
        fetch("tiny", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_when_nothing_works_the_error_says_what_was_tried_and_what_to_do(
    publish: Callable[..., None], no_apt: None, tmp_path: Path
) -> None:
    publish(address=NOWHERE, package="tiny-data")
    with pytest.raises(DataError) as failure:
        fetch("tiny", tmp_path / "data")
    message = str(failure.value)
    assert "the installed Debian package: " in message
    assert "there is no apt here" in message
    assert "the data set's own address: " in message
    assert f"Install the Debian package tiny-data, or put tiny.gz into {tmp_path / 'data'}" in message


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="'fashion_mnist'; it must be one of debian, debian-sources, fashion-mnist, gcide, wordnet"
    ):
        fetch("fashion_mnist", tmp_path)


def test_files_of_others_in_the_folder_are_left_alone(
    address: str, publish: Callable[..., None], no_apt: None, tmp_path: Path
) -> None:
    folder = _empty(tmp_path / "data")
    (folder / "notes.txt").write_text("mine")
    publish(address=address)
    fetch("tiny", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "tiny.gz"]


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder
