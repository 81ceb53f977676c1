"""The lists of tests that a stack leaves out hold what they say, and nothing else."""

import re
from pathlib import Path

import pytest

from ..left_out import LEFT_OUT_ON_CLASSIC, LEFT_OUT_ON_CURRENT, LEFT_OUT_OVER_CONNECT, is_left_out

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("test", LEFT_OUT_ON_CURRENT)
def test_what_is_left_out_is_there_and_uses_horovod_or_petastorm(test: str) -> None:
    path, _, name = test.partition("::")
    source = (ROOT / path).read_text()
    body = source[source.index(f"def {name.partition('[')[0]}(") :] if name else source
    assert re.search(r"import (horovod|petastorm)|from (horovod|petastorm)|Horovod(Runner|Backend)", body)


@pytest.mark.parametrize("test", LEFT_OUT_ON_CLASSIC)
def test_what_the_classic_stack_leaves_out_is_there(test: str) -> None:
    assert (ROOT / test).exists()


@pytest.mark.parametrize("test", LEFT_OUT_OVER_CONNECT)
def test_what_spark_connect_leaves_out_is_there_and_left_out_there_alone(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
    assert is_left_out(test, current=True, connect=True) and not is_left_out(test, current=True)


def test_a_test_is_left_out_by_its_file_by_its_name_or_by_its_backend() -> None:
    assert is_left_out("tests/ranks/collectives/test_horovod.py", current=True)
    assert is_left_out("tests/ranks/collectives/test_horovod.py::test_anything[1]", current=True)
    assert is_left_out("tests/ranks/training/test_resume.py::test_x[horovod]", current=True)
    assert is_left_out("tests/ranks/training/test_resume.py::test_x[2-horovod-adam]", current=True)
    assert not is_left_out("tests/ranks/training/test_resume.py::test_x[torch]", current=True)
    assert not is_left_out("tests/ranks/training/test_resume.py::test_horovod_is_named", current=True)
    assert not is_left_out("tests/ranks/training/test_resume.py::test_x[horovod]", current=False)
    assert is_left_out("tests/cluster/test_resources.py::test_x", current=False)
