"""What is released, and what people expect of a repository."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir())


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes of a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "sparkdl", source / "sparkdl", ignore=shutil.ignore_patterns("__pycache__"))
    command = ["make", "--assume-old=setup", "dist", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return source / "build" / "dist"


def test_the_wheel_has_every_file_of_the_package_and_metadata_that_an_index_takes(released: Path) -> None:
    (wheel,) = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = Metadata.from_email(archive.read(metadata), validate=True)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "sparkdl").rglob("*") if path.is_file()}
    files = {name for name in files if not name.endswith((".pyc", ".nbi", ".nbc"))}
    assert "sparkdl/py.typed" in files
    assert {name for name in names if name.startswith("sparkdl/")} == files
    assert (told.name, str(told.version)) == (PROJECT["name"], PROJECT["version"])
    assert told.license_expression == "Apache-2.0" and told.license_files == ["LICENSE"]
    assert told.description == (ROOT / "README.md").read_text()
    assert told.description_content_type and told.description_content_type.startswith("text/markdown")
    assert set(told.provides_extra or ()) == PROJECT["optional-dependencies"].keys()


def test_the_wheel_runs_where_it_is_installed(released: Path, tmp_path: Path) -> None:
    (wheel,) = released.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path, wheel]
    subprocess.run(install, capture_output=True, check=True)
    command = [sys.executable, tmp_path / "bin" / "sparkdl", "--version"]
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"sparkdl, version {PROJECT['version']}\n"


def test_the_source_distribution_has_what_builds_it(released: Path) -> None:
    (path,) = released.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "sparkdl/py.typed"}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_for_issues_has_a_name_and_says_what_it_is_for(template: Path) -> None:
    _, head, text = template.read_text().split("---\n", 2)
    assert {"name", "about"} <= yaml.safe_load(head).keys() and text.strip()


def test_the_container_runs_the_demo_by_targets_that_are_there_and_is_sent_nothing_that_git_ignores() -> None:
    steps = (ROOT / "Dockerfile").read_text()
    targets = re.findall(r"make[\", ]+([a-z-]+)", steps)
    assert targets == ["setup-current", "demo-current"]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)
    ignored = {
        line.strip("/").removeprefix("**/")
        for name in (".gitignore", ".dockerignore")
        for line in (ROOT / name).read_text().splitlines()
        if line and not line.startswith("#")
    }
    sent = (ROOT / ".dockerignore").read_text()
    assert [line for line in ignored if line not in sent] == []
