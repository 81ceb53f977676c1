"""The tests that the current stack leaves out, each with its reason; all others run on both stacks.

What is listed is a file, a test with all its parameters, or a test with one of them. The tests that run with each
backend run with torch.distributed alone.
"""

import re

HOROVOD = "it is Horovod itself, which has no release for this stack"
PETASTORM = "it is Petastorm itself, which has no release for this stack"

LEFT_OUT = {
    "tests/ranks/collectives/test_horovod.py": HOROVOD,
    "tests/cluster/test_runner.py": HOROVOD,
    "tests/cluster/test_petastorm.py": PETASTORM,
    "tests/end_to_end/test_notebook.py::test_every_cell_of_the_quickstart_runs": HOROVOD,
    "tests/unit/test_setup.py::test_horovod_was_built_with_gloo": HOROVOD,
}
WITH_HOROVOD = re.compile(r"\[(.*-)?horovod(-.*)?\]$")
"""How the name of a test ends that runs with each backend, when it is Horovod's turn."""


def is_left_out(test: str) -> bool:
    """Whether the current stack leaves a test out; ``test`` is its path and name, or the path of its file."""
    name = test.partition("[")[0]
    listed = {test, name, name.partition("::")[0]} & LEFT_OUT.keys()
    return bool(listed or WITH_HOROVOD.search(test))
