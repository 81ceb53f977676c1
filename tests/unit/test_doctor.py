"""What ranks have found, compared with the driver: no Spark is needed for that."""

from pathlib import Path

import pytest

from sparkdl.collectives import TorchBackend
from sparkdl.doctor import _compared, _reached, _versions
from sparkdl.errors import ClusterError, ConfigError, StorageError


def found(**changes: object) -> dict[str, object]:
    return {"host": "here", "device": "cpu", "versions": _versions(), "problem": None} | changes


def test_ranks_with_the_drivers_packages_are_fine_whatever_only_mends_them() -> None:
    versions = _versions() | {"torch": ".".join(_versions()["torch"].split(".")[:2]) + ".99+cu130"}
    assert _compared([found(), found(versions=versions)], TorchBackend()).startswith("2 on here, on cpu")


def test_a_rank_with_other_packages_is_named_with_both_versions() -> None:
    versions = _versions() | {"torch": "1.0.0"}
    with pytest.raises(ClusterError, match=r"rank 1 on host there has other packages than the driver: torch 1\.0\.0;"):
        _compared([found(), found(host="there", versions=versions)], TorchBackend())
    del versions["torch"]
    with pytest.raises(ClusterError, match="torch missing"):
        _compared([found(versions=versions)], TorchBackend())


def test_a_folder_that_each_host_has_for_itself_is_no_storage_for_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "doctor"
    folder.mkdir(parents=True)
    (folder / "rank-0").touch()
    assert "is seen by the driver and all ranks" in _reached([found()], str(folder))
    with pytest.raises(
        ConfigError,
        match=r"the files that 1 of 2 ranks wrote to train\.run_dir, .*/runs, are not visible on the driver",
    ):
        _reached([found(), found()], str(folder))


def test_a_rank_that_cannot_write_says_why(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="rank 1: read-only"):
        _reached([found(), found(problem="read-only")], str(tmp_path / "doctor"))
