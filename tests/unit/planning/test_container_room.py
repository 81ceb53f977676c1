"""Ranks that do not fit into the containers of their executors are found before they run."""

from types import SimpleNamespace

import pytest

from sparkdl.data import Dataset
from sparkdl.errors import ClusterError
from sparkdl.planning.container_room import check_room
from sparkdl.settings import Cluster, Train

TRAIN = Train(batch_size=8)


def session(**conf: str) -> SimpleNamespace:
    """One that says only how its application was started."""
    named = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
    return SimpleNamespace(_jsc=None, sparkContext=SimpleNamespace(_conf=named))


def test_a_rank_that_fits_is_told_with_what_there_is_for_it(clouds: Dataset) -> None:
    found = check_room(clouds, TRAIN, Cluster(), session(master="yarn", executor_memoryOverhead="1g"))
    assert found["memory"].startswith("60") and found["memory"].endswith("1024 MiB for it in its container")


def test_ranks_that_do_not_fit_are_refused_with_the_setting_to_raise(clouds: Dataset) -> None:
    two = session(master="k8s://https://host", executor_cores="2", executor_memoryOverhead="1g")
    words = r"runs 2 of them; a container has 1024 MiB.*Set `spark\.executor\.memoryOverhead` to 1[23]\d\d MiB or more"
    with pytest.raises(ClusterError, match=words):
        check_room(clouds, TRAIN, Cluster(), two)


def test_where_no_container_has_a_limit_nothing_is_said(clouds: Dataset) -> None:
    assert check_room(clouds, TRAIN, Cluster(), session(master="spark://host:7077")) == {}
