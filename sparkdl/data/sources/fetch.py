"""Downloads public data sets for the examples, once, and keeps them in the user's cache folder.

Each comes from a Debian package, which can be downloaded and unpacked without root, or from its authors' own address.
In both cases, the checksum of every file is verified.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkdl.errors import DataError
from sparkdl.storage import cache_folder

__all__ = ["Published", "fetch"]

TIMEOUT = 30
"""Seconds to wait for an answer of a server."""


@dataclass(frozen=True)
class Published:
    """Where a data set is published: in a Debian package, under an address of its own, or both."""

    package: str | None
    """The Debian package that contains it, if there is one."""
    folder: str
    """The folder of that package's files."""
    checksums: Mapping[str, str]
    """The files, and the SHA-256 of each."""
    address: str | None = None
    """The address at which its authors publish the same files."""


DATA_SETS = {
    "fashion-mnist": Published(
        package="dataset-fashion-mnist",
        folder="/usr/share/datasets/fashion-mnist",
        checksums={
            "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
            "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
            "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
            "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        },
        # This server only supports http; the checksums show whether the files are the right ones.
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    "debian": Published(
        package=None,
        folder="/",
        checksums={"Packages.xz": "9e0b5aabb2465b3d2e7a7fe27f9913846277833f7a2826e7767acccff5b588c5"},
        address="http://deb.debian.org/debian/dists/bookworm/main/binary-amd64",
    ),
    "debian-sources": Published(
        package=None,
        folder="/",
        checksums={"Sources.xz": "92d11a035571df011f06f28c61cb9825130ef1d92abb2f2e0525e8674dc44af8"},
        address="http://deb.debian.org/debian/dists/bookworm/main/source",
    ),
    "gcide": Published(
        package="dict-gcide",
        folder="/usr/share/dictd",
        checksums={
            "gcide.dict.dz": "3e6b2cdcbc1b3664c2f1466e3c8e44012e815c4c67fa83fa61f39777cd6e8517",
            "gcide.index": "e78de035e075f16dd686dd87a4dbf5b4525130d0550968a02d929f5ddf63a6a1",
        },
    ),
    # No address: Princeton publishes the unchanged release, but these files are those that Debian corrected.
    "wordnet": Published(
        package="wordnet-base",
        folder="/usr/share/wordnet",
        checksums={
            "data.adj": "c89120dfc1f046ddff4a631bf9b7e9fa1a36b5e86565a23bf82dbe14f30b88a7",
            "data.adv": "444a63bf3955080ab7524f5079cfc07ff9bc682cb98bdb1db73b0fb9829f1139",
            "data.noun": "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2",
            "data.verb": "adcf43e35b581e8036d8b5a52d63d9cd3d3b4870b2720d3c03c799df44777bc2",
        },
    ),
}


def fetch(name: str, folder: str | Path | None = None) -> Path:
    """The folder with the files of a public data set; missing or damaged files are downloaded first.

    Runs on the driver. ``fashion-mnist`` is Xiao, Rasul, Vollgraf (2017), arXiv 1708.07747: 70,000 images in four
    gzipped IDX files. ``wordnet`` is WordNet 3.0 (Fellbaum, 1998): the synsets of nouns, verbs, adjectives and adverbs.
    ``gcide`` is GNU's Collaborative International Dictionary of English 0.48; ``debian`` and ``debian-sources`` are the
    indices of Debian 12.15's packages and of the source packages from which these are built.
    The files go to ``folder``, by default ``sparkdl/data/<name>`` in the user's cache folder. An
    installed Debian package is used as it is; else the package is downloaded and unpacked there; else the files come
    from the data set's own address. Raises :class:`DataError` for an unknown name, or saying what was tried.
    """
    if name not in DATA_SETS:
        raise DataError(f"there is no data set {name!r}; it must be one of {', '.join(sorted(DATA_SETS))}")
    published = DATA_SETS[name]
    folder = Path(folder).expanduser().absolute() if folder is not None else cache_folder() / "data" / name
    if _problem(folder, published) is None:
        return folder
    failures = []
    for description, way in WAYS.items():
        try:
            with _workplace(folder) as work:
                source = way(published, work)
                problem = _problem(source, published)
                if problem is None:
                    _place(source, folder, published)
                    megabytes = sum(path.stat().st_size for path in source.iterdir()) / 1e6
                    _say(f"{name}: {megabytes:.0f} MB, checksums verified, in {folder}")
                    return folder
        except (OSError, subprocess.SubprocessError) as error:
            problem = _reason(error)
        failures.append(f"  {description}: {problem}")
    raise DataError(
        f"cannot fetch the data set {name!r}; tried\n"
        + "\n".join(failures)
        + (f"\nInstall the Debian package {published.package}, or put " if published.package else "\nPut ")
        + f"{', '.join(published.checksums)} into {folder}"
    )


def _installed(published: Published, work: Path) -> Path:
    if published.package is None:
        raise OSError("it is in none")
    return Path(published.folder)


def _from_package(published: Published, work: Path) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise OSError("there is no apt here")
    if published.package is None:
        raise OSError("it is in none")
    _say(f"downloading Debian's package {published.package}")
    try:
        _run(["apt-get", "download", published.package], work)
    except subprocess.CalledProcessError:
        # The machine's package lists may be missing or old; lists in our own folder can be updated without root.
        lists, cache = work / "lists", work / "cache"
        (lists / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        private = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"]
        _run(["apt-get", *private, "-o", "Acquire::Languages=none", "update"], work)
        _run(["apt-get", *private, "download", published.package], work)
    (package,) = work.glob("*.deb")
    _run(["dpkg-deb", "--extract", str(package), "unpacked"], work)
    return work / "unpacked" / published.folder.lstrip("/")


def _from_address(published: Published, work: Path) -> Path:
    if published.address is None:
        raise OSError("it has none")
    for name in published.checksums:
        _say(f"downloading {published.address}/{name}")
        with (
            urllib.request.urlopen(f"{published.address}/{name}", timeout=TIMEOUT) as answer,
            (work / name).open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
    return work


WAYS = {
    "the installed Debian package": _installed,
    "Debian's package, downloaded": _from_package,
    "the data set's own address": _from_address,
}
"""The ways to get the files, in order of preference. Each function returns the folder that contains them."""


def _problem(folder: Path, published: Published) -> str | None:
    """What is wrong with the files in a folder; None if every checksum is right."""
    for name, expected in published.checksums.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            return f"{path} has the checksum {actual}, not {expected}"
    return None


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """An empty folder beside the final files, so that placing them is a rename."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as work:
        yield Path(work)


def _place(source: Path, folder: Path, published: Published) -> None:
    """Put the files into the folder, each whole or not at all."""
    with _workplace(folder) as work:
        for name in published.checksums:
            shutil.copyfile(source / name, work / name)
            (work / name).replace(folder / name)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


def _reason(error: Exception) -> str:
    """The line that explains a failure."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else str(error)
    return str(error)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
