"""The shortest useful program of the README, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_shortest_useful_program_ends_with_a_table_of_predictions(tmp_path: Path) -> None:
    section = README.partition("## The shortest useful program")[2]
    (tmp_path / "program.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    head, *rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    columns = [name.strip() for name in head]
    assert columns[-4:] == ["target", "prediction", "probability", "top_k"]
    right = [row[columns.index("target")].strip() == row[columns.index("prediction")].strip() for row in rows]
    assert len(right) == 20 and sum(right) >= 15
