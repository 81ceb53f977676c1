"""The server's process: it opens a port, loads a model, and answers requests until it receives a signal to stop."""

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

    ``model`` is the same as for :func:`sparkdl.score`: ``models:/name@alias``, ``models:/name/version``, or a folder;
    ``form`` chooses one of its forms. The server answers POST /invocations with JSON as ``mlflow models serve`` does,
    and GET /ping, /health, /version and /metrics (Prometheus). Requests that arrive while a batch is computed form the
    next batch, of at most ``max_batch`` rows; with ``max_wait_ms``, the first request of a batch waits up to that many
    milliseconds for others. An invalid request is refused without affecting the others of its batch. Neither Spark nor
    Java is needed; MLflow's store is needed only to fetch the model.

    Clients are not authenticated; put a proxy with authentication and TLS in front of it. Requests that are in flight
    when the server is stopped are still answered.

    Raises :class:`ConfigError` for an address that cannot be used or a form that the model does not have,
    :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError` for one
    that is damaged, and :class:`~sparkdl.errors.OnlySparkError` for one whose preprocessing needs Spark.
    """
    if max_batch < 1 or max_wait_ms < 0:
        raise ConfigError(
            f"serve: max_batch is {max_batch} and max_wait_ms is {max_wait_ms}; they must be at least 1 and at least 0"
        )
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
    """A socket that is bound to the address, but does not listen yet. Raises :class:`ConfigError`."""
    # With an explicit protocol, asyncio turns off Nagle's algorithm, which delays an answer's second part by 40 ms.
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
    """Ignores SIGINT and SIGTERM, which uvicorn raises again after it has answered the last request."""
    if threading.current_thread() is not threading.main_thread():  # uvicorn handles signals only in the main thread
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
    """Excludes all objects that exist by now from garbage collection: scanning them takes longer than an answer."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _one_core_for_requests() -> Iterator[None]:
    """PyTorch computes on all cores but one, which reads requests, unless ``OMP_NUM_THREADS`` is set.

    Without a free core, PyTorch's threads would wait for one that is not running: ten times slower for a small network.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
