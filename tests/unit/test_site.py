"""The documentation is built as a site without a warning: no link, name or page is missing."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning_and_has_what_is_made_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        "": "Train deep networks on the Spark cluster you already have",  # README.md
        "contributing": "Where things are",
        "changelog": "Added",
        "examples": "rank_search_results.py",
        "reference/commands": "Usage: sparkdl train [OPTIONS]",
        "reference/settings": "train.strategy.period",
        "reference/python": "Train a network on a prepared dataset",
    }
    for page, text in pages.items():
        assert text in (tmp_path / "site" / page / "index.html").read_text(), page
