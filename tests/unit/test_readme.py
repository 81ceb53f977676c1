"""The README is short, and leads to every page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_read_in_ten_minutes() -> None:
    assert len(README.split()) <= 1300


def test_it_leads_to_every_page() -> None:
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in README] == []


def test_what_contributing_says_of_where_things_are_is_true() -> None:
    table = re.findall(
        r"^\| .+ \| `(sparkdl/\S+\.py)`.* \| `([\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert len(table) >= 9
    for path, name in table:
        assert re.search(rf"^ *(class|def) {name.rpartition('.')[2]}\b", (ROOT / path).read_text(), re.MULTILINE), name
