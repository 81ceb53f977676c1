"""The README is short, and leads to every page."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_read_in_ten_minutes() -> None:
    assert len(README.split()) <= 1300


def test_it_leads_to_every_page() -> None:
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in README] == []
