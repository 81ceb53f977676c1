"""Tables of plain text, for a terminal and for a log."""

from collections.abc import Collection, Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
    """The rows as lines, in columns as wide as they have to be: those in ``left`` begin left, others end right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if place in left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
