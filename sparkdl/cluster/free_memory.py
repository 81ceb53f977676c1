"""The free memory of a host or container. Runs anywhere."""

from pathlib import Path

import psutil

__all__ = ["free_memory"]

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""The files with a container's limit, its use, and the part of it that is page cache, which the kernel can drop: for
version 2 of Linux's control groups, and for version 1."""


def free_memory(cgroups: Path = CGROUPS) -> int:
    """The free bytes of the host, or of the container if these are fewer."""
    free: int = psutil.virtual_memory().available
    for limit, usage, statistics, droppable in LIMITS:
        try:
            most, used = int((cgroups / limit).read_text()), int((cgroups / usage).read_text())
            lines = dict(line.split() for line in (cgroups / statistics).read_text().splitlines())
        except (OSError, ValueError):  # there is no such group, or no limit ("max")
            continue
        free = min(free, most - used + int(lines.get(droppable, 0)))
    return max(free, 0)
