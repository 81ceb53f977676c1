"""Who may know whom, as the README's layout says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sparkdl"
GROUND = {"config", "environment", "errors", "masking", "settings", "storage"}
FIRST = {"cluster", "collectives", "data", "models", "tracking"}
SECOND = {"extreme", "scoring", "training"}


def rooms_known(room: str) -> set[str]:
    """The rooms that the files of a room import from."""
    files = (ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module} if node.module != "sparkdl" else {f"sparkdl.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
    return {name.split(".")[1] for name in names if name.startswith("sparkdl.")} - {room}


@pytest.mark.parametrize("room", sorted(GROUND | FIRST | SECOND))
def test_a_room_knows_only_the_floors_below(room: str) -> None:
    allowed = GROUND if room in GROUND | FIRST else GROUND | FIRST
    assert rooms_known(room) <= allowed


def test_what_runs_in_tasks_and_on_ranks_loads_only_what_all_of_it_needs() -> None:
    modules = "sparkdl.data.preparing.write, sparkdl.scoring.task, sparkdl.extreme.tasks, sparkdl.training.loop"
    program = (
        f"import sys, {modules}; print(sorted(sys.modules.keys() & {{'mlflow', 'matplotlib', 'numba', 'pandas'}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
