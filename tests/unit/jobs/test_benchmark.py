"""``jobs/benchmark.py``, where it needs no Spark."""

import json

import pytest
from click.testing import CliRunner

from benchmark import NAMES, benchmark
from benchmarks.report import Report, Target
from sparkdl.cluster.logs import print_lines


def test_a_benchmarks_json_stands_alone_whatever_ranks_print(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure() -> Report:
        print_lines(1, ["UserWarning: something"])
        return Report("loop", ["loop", "images/s"], [["sparkdl", 3.0]], targets=[Target("images/s", 3.0, 4.0)])

    monkeypatch.setattr("benchmarks.loop.run", measure)
    done = CliRunner().invoke(benchmark, ["loop", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["targets"] == [
        {"name": "images/s", "value": 3.0, "limit": 4.0, "at_most": False, "reached": False}
    ]
    assert "[rank 1] UserWarning: something" in done.stderr


def test_it_names_every_benchmark() -> None:
    done = CliRunner().invoke(benchmark, ["--help"])
    assert f"[{'|'.join(NAMES)}]" in "".join(done.stdout.split())
