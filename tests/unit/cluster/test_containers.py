"""What an executor's container has for Python, and what is said of one that was ended for its memory."""

from types import SimpleNamespace

import pytest

from sparkdl.cluster.containers import ContainerMemory, container_memory, with_memory_advice

ON_YARN = (
    "Spark says: ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: Container killed by"
    " YARN for exceeding physical memory limits. 2.2 GB of 2.1 GB physical memory used. Consider boosting"
    " spark.executor.memoryOverhead."
)
ON_KUBERNETES = "Spark says: The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM)."


def session(**conf: str) -> SimpleNamespace:
    """A session that says only how its application was started."""
    named = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
    return SimpleNamespace(_jsc=None, sparkContext=SimpleNamespace(_conf=named))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"master": "yarn"}, ContainerMemory(1024, 384, 1)),
        ({"master": "yarn", "executor_memory": "8g", "executor_cores": "4"}, ContainerMemory(8192, 819, 4)),
        ({"master": "k8s://https://host", "executor_memory": "2g"}, ContainerMemory(2048, 819, 1)),
        (
            {"master": "yarn", "executor_memoryOverhead": "1600", "executor_pyspark_memory": "1g"},
            ContainerMemory(1024, 2624, 1),
        ),
        ({"master": "spark://host:7077"}, None),
    ],
)
def test_pythons_share_is_what_sparks_settings_make_it(conf, expected) -> None:
    assert container_memory(session(**conf)) == expected


def test_the_setting_to_raise_is_named_and_how_far() -> None:
    yarn = session(master="yarn", executor_memory="600m", executor_memoryOverhead="1600m")
    assert "raise `spark.executor.memoryOverhead`, now 1600 MiB, to more than 1653 MiB" in with_memory_advice(
        ON_YARN, yarn
    )
    pods = session(master="k8s://https://host")
    assert with_memory_advice(ON_KUBERNETES, pods).endswith("now 410 MiB, or set a smaller train.batch_size")


def test_other_ends_are_told_as_they_are() -> None:
    assert (
        with_memory_advice("Spark says: the node was lost", session(master="yarn")) == "Spark says: the node was lost"
    )
    assert with_memory_advice(ON_YARN, session(master="local[2]")) == ON_YARN
