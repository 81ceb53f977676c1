"""An S3 server in a process of its own, which can be stopped and started again with all that it holds.

Run as a program it obeys the lines ``stop`` and ``start``, and answers each with a line once it is done.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class S3Server:
    """The server, seen from another process."""

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders, self._answers = orders, answers
        self.url = self._answers.readline().strip()

    def stop(self) -> None:
        """Close its port: connections are refused."""
        self._order("stop")

    def start(self) -> None:
        """Open the port again."""
        self._order("start")

    def _order(self, order: str) -> None:
        self._orders.write(f"{order}\n")
        self._orders.flush()
        assert self._answers.readline().strip() == order


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running server without buckets."""
    from benchmarks.ports import free_ports  # which the program cannot import

    with subprocess.Popen(
        [sys.executable, __file__, *map(str, free_ports(1))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        try:
            yield S3Server(process.stdin, process.stdout)
        finally:
            process.kill()


def serve(port: int) -> None:
    """Serve on this machine until the orders end."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    for order in map(str.strip, sys.stdin):
        server.stop() if order == "stop" else server.start()
        print(order, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
