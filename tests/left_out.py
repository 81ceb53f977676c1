"""The tests that one of the stacks leaves out, or Spark Connect, each with its reason; all others run on both.

What is listed is a file, a test with all its parameters, or a test with one of them. On the current
stack, the tests that run with each backend run with torch.distributed alone. ``--connect`` runs the tests of jobs from
a client of a Spark Connect server.
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
LEFT_OUT_OVER_CONNECT = {
    "tests/cluster/test_prepare_faults.py::test_of_three_in_one_place_the_killed_leaves_nothing_one_is_whole_and_the_slow_"
    "one_is_told": "it looks at the Java process that a job starts, and a client starts none",
    "tests/cluster/test_score.py::test_a_job_killed_while_it_scores_leaves_nothing_that_looks_whole": (
        "the server goes on for a client that was killed, in a folder that a later job removes"
    ),
    "tests/cluster/test_train_extreme.py::test_nothing_is_shuffled_and_no_stage_is_a_barrier": (
        "it reads Spark's own records of stages, which the server does not hand out"
    ),
}
WITH_HOROVOD = re.compile(r"\[(.*-)?horovod(-.*)?\]$")
"""How the name of a test ends that runs with each backend, when it is Horovod's turn."""


def is_left_out(test: str, *, current: bool, connect: bool = False) -> bool:
    """Whether a stack leaves a test out, or Spark Connect; ``test`` is its path and name, or the path of its file."""
    name = test.partition("[")[0]
    left_out = LEFT_OUT_ON_CURRENT if current else LEFT_OUT_ON_CLASSIC
    if connect:
        left_out = left_out | LEFT_OUT_OVER_CONNECT
    listed = {test, name, name.partition("::")[0]} & left_out.keys()
    return bool(listed or (current and WITH_HOROVOD.search(test)))
