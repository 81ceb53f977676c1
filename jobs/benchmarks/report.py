"""What a benchmark prints: one table, ours beside its rivals, and whether each target was reached."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Report", "Target"]


@dataclass(frozen=True)
class Target:
    """A figure that must be reached: ``value`` at least (or, with ``at_most``, at most) ``limit``."""

    name: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure is on the right side of its limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True)
class Report:
    """The result of one benchmark: rows under columns, targets, and a note on how it was measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    targets: Sequence[Target] = ()
    note: str = ""
    digits: int = 3
    """Significant digits of small numbers."""

    def __str__(self) -> str:
        cells = [list(map(str, self.columns)), *([_cell(value, self.digits) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
            for row in cells
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        verdicts = [
            f"{'reached' if target.reached else 'MISSED'}: {target.name} {_cell(target.value, self.digits)}"
            f" ({'at most' if target.at_most else 'at least'} {_cell(target.limit, self.digits)})"
            for target in self.targets
        ]
        return "\n".join([f"## {self.title}", "", *lines, "", *verdicts, *([self.note] if self.note else [])])

    def to_json(self) -> str:
        """The report as one line of JSON, verdicts included."""
        tree = asdict(self)
        for target, record in zip(self.targets, tree["targets"], strict=True):
            record["reached"] = target.reached
        return json.dumps(tree)


def _cell(value: str | float, digits: int) -> str:
    """So many significant digits for small numbers, whole numbers with separators for large ones."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
