"""Unified patches, applied exactly: a line that is not where its patch says ends the set-up.

``patch`` and ``git apply`` do more than this (they look for lines that have moved), and not every machine has them.
"""

from __future__ import annotations

import re
from pathlib import Path

from steps import SetupError

__all__ = ["PATCHES", "apply"]

PATCHES = sorted(Path(__file__).with_name("patches").glob("*.patch"))
"""What is changed in Horovod's source release before it is built, in order. Each file begins with its reason."""


def apply(patch: Path, source: Path) -> None:
    """Change the files in the folder ``source`` that a patch names.

    Raises :class:`~steps.SetupError` when a line that it removes or keeps is not at its place.
    """
    _, *files = re.split(r"^--- a/(.+)\n\+\+\+ b/.+\n", patch.read_text(), flags=re.MULTILINE)
    for name, changes in zip(files[::2], files[1::2], strict=True):
        lines = (source / name).read_text().splitlines(keepends=True)
        _, *hunks = re.split(r"^@@ -(\d+).*\n", changes, flags=re.MULTILINE)
        # From the last one up: what it changes does not move those above it.
        for number, hunk in reversed(list(zip(hunks[::2], hunks[1::2], strict=True))):
            start, said = int(number) - 1, hunk.splitlines(keepends=True)
            before = [line[1:] for line in said if line[0] in " -"]
            after = [line[1:] for line in said if line[0] in " +"]
            if lines[start : start + len(before)] != before:
                raise SetupError(
                    f"cannot prepare Horovod's source: {patch.name} does not fit {name} at line {number}; "
                    "the patches in .setup/patches are for the release in .setup/horovod.txt, and for this order"
                )
            lines[start : start + len(before)] = after
        (source / name).write_text("".join(lines))
