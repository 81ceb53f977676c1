"""The tests that one of the stacks leaves out, each with its reason; all others run on both.

What is listed is a file, a test with all its parameters, or a test with one of them. On the current
stack, the tests that run with each backend run with torch.distributed alone.
"""

import re

HOROVOD = "it is Horovod itself, which has no release for this stack"
PETASTORM = "it is Petastorm itself, which has no release for this stack"

LEFT_OUT_ON_CLASSIC = {
    "tests/cluster/test_connect.py": "PySpark 3.5 brings no Spark Connect server",
    "tests/cluster/test_relay.py": "PySpark 3.5 brings no Spark Connect server",
    "tests/cluster/test_resources.py": "Spark 3.5 gives all stages the same resources",
}
LEFT_OUT_ON_CURRENT = {
    "tests/ranks/collectives/test_horovod.py": HOROVOD,
    "tests/cluster/test_runner.py": HOROVOD,
    "tests/cluster/test_petastorm.py": PETASTORM,
    "tests/end_to_end/test_notebook.py::test_every_cell_of_the_quickstart_runs_with_a_part_of_its_images": HOROVOD,
    "tests/unit/test_setup.py::test_horovod_was_built_with_gloo": HOROVOD,
}
WITH_HOROVOD = re.compile(r"\[(.*-)?horovod(-.*)?\]$")
"""How the name of a test ends that runs with each backend, when it is Horovod's turn."""


def is_left_out(test: str, *, current: bool) -> bool:
    """Whether a stack leaves a test out; ``test`` is its path and name, or the path of its file."""
    name = test.partition("[")[0]
    left_out = LEFT_OUT_ON_CURRENT if current else LEFT_OUT_ON_CLASSIC
    listed = {test, name, name.partition("::")[0]} & left_out.keys()
    return bool(listed or (current and WITH_HOROVOD.search(test)))
