"""`make demo-extreme`, with fewer and smaller repetitions than a user has, on a part of the rows."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_on_wordnet_runs_from_the_files_to_scored_rows(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "jobs" / "demo.py"), str(ROOT / "conf" / "wordnet.yaml")]
    small = ["extreme.repetitions=2", "extreme.repetitions_per_task=1", "extreme.hidden=[16]", "extreme.epochs=1"]
    small += ["prepare.stages=[{kind: count_text, columns: [gloss], minimum_documents: 5, sublinear: true}]"]
    small += ["extreme.batch_size=512", "tracking.gate.minimum=0.01", "prepare.split.fractions={test: 0.02, rest: 0.9}"]
    done = subprocess.run([*command, *small], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    ensemble = re.search(r"this ensemble +[\d,]+ +\d+ MB +([\d.]+)%", done.stdout)
    assert ensemble is not None, done.stdout
    assert float(ensemble[1]) > 5
    assert re.search(r"one-vs-all +[\d,]+ +\d+ MB +[\d.]+%", done.stdout)
    assert re.search(r"one-vs-all, linear +[\d,]+ +[\d,]+ MB +not trained here", done.stdout)
    assert re.search(r"[\d,]+ of [\d,]+ test labels never occur in training", done.stdout)
    assert "alias 'candidate' points to version 1" in done.stdout
    scored = re.search(r"predictions +.*\(([\d.]+)% of them are right\)", done.stdout)
    assert scored is not None and scored[1] == ensemble[1]
    assert "mlflow ui" in done.stdout
