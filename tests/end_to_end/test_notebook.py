"""The notebooks run as they are printed, with a part of their rows, that on strategies for one epoch."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
QUICKSTART, EXTREME = NOTEBOOKS / "quickstart.ipynb", NOTEBOOKS / "extreme_classification.ipynb"
STRATEGIES, FINE_TUNING = NOTEBOOKS / "strategies.ipynb", NOTEBOOKS / "fine_tuning.ipynb"


def run(notebook: NotebookNode, folder: Path) -> str:
    """Execute all cells in place; what they print."""
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


def test_every_cell_of_the_quickstart_runs_with_a_part_of_its_images(tmp_path):
    notebook = nbformat.read(QUICKSTART, as_version=4)
    (first,) = [cell for cell in notebook.cells if ".sample(0.2, seed=0)" in cell.source]
    first.source = first.source.replace("0.2", "0.1")
    text = run(notebook, tmp_path)
    assert "test accuracy" in text
    assert "alias 'candidate' points to version 1" in text
    assert "[rank 0] learning rate 0.1" in text  # in the cell on HorovodRunner


def test_every_cell_on_very_many_classes_runs_with_a_slice_of_wordnet(tmp_path):
    notebook = nbformat.read(EXTREME, as_version=4)
    (size,) = [cell for cell in notebook.cells if cell.source.startswith("share, repetitions, epochs = ")]
    size.source = "share, repetitions, epochs = 0.04, 2, 1"
    text = run(notebook, tmp_path)
    assert "alias 'candidate' points to version 1" in text
    assert "of the first guesses are right" in text
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 4


def test_every_cell_on_strategies_runs_and_all_reduce_sends_most(tmp_path):
    notebook = nbformat.read(STRATEGIES, as_version=4)
    (epochs,) = [cell for cell in notebook.cells if "EPOCHS, ROWS = 4, 32" in cell.source]
    epochs.source = epochs.source.replace("EPOCHS, ROWS = 4, 32", "EPOCHS, ROWS = 1, 32")
    text = run(notebook, tmp_path)
    sent = [float(megabytes) for megabytes in re.findall(r"([\d.]+) MB a step, \d", text)]
    assert sent == sorted(sent, reverse=True) and len(sent) == 4
    assert "Mbit/s all-reduce sends as long as it computes" in text


def test_every_cell_on_fine_tuning_runs_with_a_slice_of_wordnet(tmp_path):
    notebook = nbformat.read(FINE_TUNING, as_version=4)
    (size,) = [cell for cell in notebook.cells if "share, epochs = 1.0, 5" in cell.source]
    size.source = size.source.replace("1.0, 5", "0.1, 1")
    text = run(notebook, tmp_path)
    assert "alias 'candidate' points to version 1" in text
    assert "eat a large meal" in text and "verb.motion" in text


@pytest.mark.parametrize("path", [QUICKSTART, EXTREME, STRATEGIES, FINE_TUNING], ids=lambda path: path.stem)
def test_it_is_kept_with_real_outputs_and_no_errors(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
