"""The examples are short, and run as they stand, as does the program of the README: all in one Spark session."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
AT_LEAST = {
    "classify_a_table": (r"test accuracy ([\d.]+)", 0.85),
    "classify_texts": (r"a good one\| +(1)\|", 1),
    "exchange_less_often": (r"local_sgd: test accuracy ([\d.]+)", 0.85),
    "learn_from_images": (r"test accuracy ([\d.]+)", 0.85),
    "make_a_model_lighter": (r"int8: .* accuracy ([\d.]+)", 0.85),
    "predict_a_number": (r"R2 .*: ([\d.]+)", 0.3),
    "rank_search_results": (r"NDCG .*: ([\d.]+)", 0.9),
    "recommend_items": (r"test accuracy ([\d.]+)", 0.85),
    "run_your_own_loop": (r"(loss) on rank 0: 0\.0", None),
    "search_for_settings": (r"best of (\d+) trials", 4),
    "very_many_classes": (r"precision at 1: ([\d.]+)", 0.9),
}
"""What each prints, and how large the figure in it is at least."""


def test_all_of_them_are_run_and_every_job_is_in_one() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(AT_LEAST)
    programs = "".join(path.read_text() for path in EXAMPLES.glob("*.py"))
    jobs = ("prepare", "train", "tune", "train_extreme", "compress", "score", "TorchRunner")
    assert [job for job in jobs if f"sparkdl.{job}(" not in programs] == []


Run = Callable[[Path], str]


@pytest.fixture
def run(
    spark: SparkSession,
    empty_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    """Run a program in an empty folder; what it prints."""
    copytree(empty_store.parent, tmp_path / "output")  # MLflow's tables, where they would be made otherwise
    monkeypatch.chdir(tmp_path)

    def run(program: Path) -> str:
        runpy.run_path(str(program), run_name="__main__")
        return capfd.readouterr().out

    return run


@pytest.mark.parametrize("name", AT_LEAST)
def test_it_runs_as_it_stands_and_is_short(name: str, run: Run) -> None:
    program = EXAMPLES / f"{name}.py"
    assert len(program.read_text().splitlines()) < 25
    printed = run(program)
    text, least = AT_LEAST[name]
    found = re.search(text, printed)
    assert found, printed
    assert least is None or float(found[1]) >= least, printed


def test_the_shortest_useful_program_of_the_readme_ends_with_a_table_of_predictions(run: Run, tmp_path: Path) -> None:
    section = (EXAMPLES.parent / "README.md").read_text().partition("## The shortest useful program")[2]
    (tmp_path / "program.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    head, *rows = [line.split("|")[1:-1] for line in run(tmp_path / "program.py").splitlines() if line.startswith("|")]
    columns = [name.strip() for name in head]
    assert columns[-4:] == ["target", "prediction", "probability", "top_k"]
    right = [row[columns.index("target")].strip() == row[columns.index("prediction")].strip() for row in rows]
    assert len(right) == 20 and sum(right) >= 15
