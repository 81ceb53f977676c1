"""`make demo-extreme`, with fewer and smaller repetitions than a user has."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_on_wordnet_runs_from_the_files_to_a_summary(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "jobs" / "demo_extreme.py", ROOT / "conf" / "wordnet.yaml"]
    small = ["extreme.repetitions=2", "extreme.repetitions_per_task=1", "extreme.hidden=[32]", "extreme.epochs=3"]
    done = subprocess.run([*command, *small], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    found = re.search(r"P@1 ([\d.]+)%, P@3 ([\d.]+)%, P@5 ([\d.]+)%", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 15
    assert re.search(r"one-vs-all, linear: [\d,]+ parameters", done.stdout)
    assert re.search(r"[\d,]+ of [\d,]+ test labels never occur in training", done.stdout)
    assert "mlflow ui" in done.stdout
