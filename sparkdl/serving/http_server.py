"""The server's process: it opens a port and a model, and answers until it is told to end."""

import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import uvicorn

from sparkdl.errors import ConfigError
from sparkdl.serving.answerer import Answerer
from sparkdl.serving.app import create_app
from sparkdl.settings import Tracking
from sparkdl.settings.score import BATCH_SIZE
from sparkdl.tracking import download

__all__ = ["serve"]

log = logging.getLogger(__name__)


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 5000,
    max_batch: int = BATCH_SIZE,
    max_wait_ms: float = 0.0,
    form: str = "auto",
    tracking: Tracking | None = None,
) -> None:
    """Answer requests with a registered model over HTTP, until Ctrl-C or SIGTERM. Runs wherever it is called.

    ``model`` is what :func:`sparkdl.score` takes: ``models:/name@alias``, a version, or a folder; ``form`` chooses one
    of its forms. It answers POST /invocations with JSON as ``mlflow models serve`` does, and GET /ping, /health,
    /version and /metrics (Prometheus). Requests that arrive while a batch is computed form the next batch, of at most
    ``max_batch`` rows; with ``max_wait_ms``, the first request of a batch waits up to that long for others. An invalid
    request is refused alone. Neither Spark nor Java is needed, and MLflow's store only while the model is fetched.

    Clients are not authenticated; put a proxy with authentication and TLS in front of it. Requests that are in flight
    when it ends are answered.

    Raises :class:`ConfigError` for an address that cannot be used or a form that the model does not have,
    :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError` for one
    that is damaged, and :class:`~sparkdl.errors.OnlySparkError` for one whose preprocessing takes Spark.
    """
    if max_batch < 1 or max_wait_ms < 0:
        raise ConfigError(f"serve: max_batch is {max_batch}, from 1, and max_wait_ms {max_wait_ms}, from 0")
    with _bound(host, port) as listener:
        answerer = Answerer(download(model, tracking), form=form)
        app = create_app(answerer, max_batch=max_batch, max_wait=max_wait_ms / 1000)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        where = f"[{host}]" if ":" in host else host
        log.info("%s answers at http://%s:%d/invocations", model, where, listener.getsockname()[1])
        with _ended_by_signals(), _without_collections(), _one_core_for_requests():
            server.run(sockets=[listener])


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has the address, at which nobody listens yet. Raises :class:`ConfigError`."""
    # asyncio turns Nagle's algorithm off where the protocol is named; it would hold an answer's second part for 40 ms.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen at {host}, port {port}: {reason}; choose --host and --port") from None
        yield listener


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The signals that end a server do no more than that: uvicorn raises them again when all is answered."""
    if threading.current_thread() is not threading.main_thread():  # in which uvicorn hears none either
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python's collector leaves out what is loaded by now: to look through it takes longer than an answer."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _one_core_for_requests() -> Iterator[None]:
    """PyTorch computes on all cores but one, on which requests are read; ``OMP_NUM_THREADS`` says otherwise.

    A thread that waits for one which has no core makes a small network ten times as slow.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
