"""The server's metrics, in Prometheus' text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats).

Not thread-safe: all counting happens in one event loop.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "Counters"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class _Histogram:
    """A histogram: the number of values up to each bound, and above the last one."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        so_far = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{le="{bound}"}} {so_far}'
        yield f"{name}_sum {self.total}"
        yield f"{name}_count {so_far}"


@dataclass
class Counters:
    """Requests to the model by HTTP status, their seconds, and the rows of each batch."""

    requests: Counter[int] = field(default_factory=Counter)
    seconds: _Histogram = field(default_factory=lambda: _Histogram(_SECONDS))
    batch_rows: _Histogram = field(default_factory=lambda: _Histogram(_ROWS))

    def request(self, status: int, seconds: float) -> None:
        """Count a request that was answered with this HTTP status after so many seconds."""
        self.requests[status] += 1
        self.seconds.add(seconds)

    def batch(self, rows: int) -> None:
        """Count a batch of so many rows, answered by one forward pass."""
        self.batch_rows.add(rows)

    def text(self) -> str:
        """All metrics as text."""
        errors = sum(count for status, count in self.requests.items() if status >= 400)
        by_status = [
            f'sparkdl_requests_total{{status="{status}"}} {count}' for status, count in sorted(self.requests.items())
        ]
        families = [
            ("sparkdl_requests_total", "counter", "Requests to the model by HTTP status.", by_status),
            (
                *("sparkdl_errors_total", "counter", "Requests that were not answered with predictions."),
                [f"sparkdl_errors_total {errors}"],
            ),
            (
                *("sparkdl_rows_total", "counter", "Rows that went through the model."),
                [f"sparkdl_rows_total {int(self.batch_rows.total)}"],
            ),
            (
                *("sparkdl_batch_rows", "histogram", "Rows that were answered together."),
                [*self.batch_rows.lines("sparkdl_batch_rows")],
            ),
            (
                *("sparkdl_request_seconds", "histogram", "Seconds from a request to its answer."),
                [*self.seconds.lines("sparkdl_request_seconds")],
            ),
        ]
        lines = [
            line
            for name, kind, says, values in families
            for line in [f"# HELP {name} {says}", f"# TYPE {name} {kind}", *values]
        ]
        return "\n".join(lines) + "\n"
