"""How much memory is left to the processes of a host. Runs anywhere."""

from pathlib import Path

import psutil

__all__ = ["free_memory"]

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Where a container finds its limit, what it uses, and how much of that are files that the kernel would drop: version 2
of Linux's control groups, and version 1."""


def free_memory(cgroups: Path = CGROUPS) -> int:
    """Bytes that the host has left, or the container if that is less."""
    free: int = psutil.virtual_memory().available
    for limit, usage, statistics, droppable in LIMITS:
        try:
            most, used = int((cgroups / limit).read_text()), int((cgroups / usage).read_text())
            lines = dict(line.split() for line in (cgroups / statistics).read_text().splitlines())
        except (OSError, ValueError):  # there is no such group, or ("max") no limit
            continue
        free = min(free, most - used + int(lines.get(droppable, 0)))
    return max(free, 0)
