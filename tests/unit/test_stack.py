"""Versions that sparkdl was not made for are named in one line before anything starts."""

from email.message import Message
from importlib.metadata import PackageNotFoundError

import pytest

import sparkdl
from sparkdl import stack
from sparkdl.errors import ConfigError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages that are there, beside a distribution that needs these three."""
    needs = Message()
    needs["Requires-Python"] = ">=3.11,<3.14"
    for needed in ("pyarrow<26,>=14", "pyspark<5,>=3.5", "numpy<3,>=1.26", 'petastorm==0.12.1; extra == "classic"'):
        needs["Requires-Dist"] = needed
    found = {"pyarrow": "25.0.1", "pyspark": "4.3.0", "numpy": "2.4.6", "petastorm": "0.9"}
    monkeypatch.setattr(stack, "metadata", lambda name: needs)
    monkeypatch.setattr(stack, "version", found.__getitem__)
    monkeypatch.setattr(stack.platform, "python_version", lambda: "3.12.4")
    monkeypatch.setattr(stack, "check_stack", stack.check_stack.__wrapped__)
    return found


def test_what_runs_these_tests_is_supported() -> None:
    stack.check_stack()


def test_packages_in_the_ranges_are_not_complained_of_nor_those_of_an_extra(installed: dict[str, str]) -> None:
    stack.check_stack()


def test_packages_outside_what_is_supported_are_named_before_anything_starts(installed: dict[str, str]) -> None:
    installed |= {"pyarrow": "13.0.0", "pyspark": "5.0.0"}
    with pytest.raises(ConfigError) as caught:
        _ = sparkdl.get_session
    assert str(caught.value) == (
        "sparkdl needs pyarrow <26,>=14, and 13.0.0 is installed; pyspark <5,>=3.5, and 5.0.0 is installed: "
        "pip install --upgrade sparkdl-cluster"
    )


def test_a_python_outside_what_is_supported_is_named(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack.platform, "python_version", lambda: "3.10.4")
    with pytest.raises(ConfigError, match=r"^sparkdl needs Python .*>=3\.11.*, but this is 3\.10\.4: "):
        _ = sparkdl.prepare


def test_pyspark_may_be_the_package_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "pyspark-client":
            raise PackageNotFoundError(name)
        return "4.2.0"

    monkeypatch.setattr(stack, "version", version)
    assert stack.installed_version("pyspark") == "4.2.0"
    assert stack.installed_version("torch") is None


def test_resources_for_one_stage_take_spark_4() -> None:
    stack.check_stage_resources("4.0.0")
    with pytest.raises(ConfigError, match=r"cluster\.resources needs Spark 4, but this is 3\.5\.9.*spark\.task\.cpus"):
        stack.check_stage_resources("3.5.9")
