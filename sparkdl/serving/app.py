"""The server's routes: /invocations, /ping, /health and /version as in MLflow's server, and /metrics."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mlflow.version import VERSION
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sparkdl.errors import DataError
from sparkdl.masking import without_credentials
from sparkdl.serving.answerer import Answerer
from sparkdl.serving.batcher import Batcher
from sparkdl.serving.counters import CONTENT_TYPE, Counters
from sparkdl.serving.request_rows import RequestRows, read_request

__all__ = ["MAX_BODY", "create_app"]

log = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""The most bytes of a request's body."""
JSON = "application/json"


def create_app(answerer: Answerer, *, max_batch: int, max_wait: float) -> Starlette:
    """The server's application: batches of at most ``max_batch`` rows, gathered for at most ``max_wait`` seconds."""
    counters = Counters()
    batcher: Batcher[RequestRows, bytes] = Batcher(answerer.answer, max_batch, max_wait, counters.batch)

    @asynccontextmanager
    async def answering(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def invocations(request: Request) -> Response:
        began = time.perf_counter()
        response = await answered(request)
        counters.request(response.status_code, time.perf_counter() - began)
        return response

    async def answered(request: Request) -> Response:
        kind = request.headers.get("content-type", JSON)
        if kind.partition(";")[0].strip().lower() != JSON:
            return refused(415, f"the server reads only {JSON}, not {kind[:100]}")
        try:
            body = await whole_body(request)
            if body is None:
                return refused(413, f"the request has more than {MAX_BODY >> 20} MB; send fewer rows at a time")
            return Response(await batcher.ask(read_request(body, answerer.card)), media_type=JSON)
        except DataError as error:
            return refused(400, str(error))
        except ClientDisconnect:
            return refused(400, "the client disconnected before it had sent the whole request")
        except Exception:
            log.exception("a request could not be answered")
            return refused(500, "the server failed to answer; its log has the reason")

    async def alive(request: Request) -> Response:
        return Response("\n", media_type=JSON)

    async def version(request: Request) -> Response:
        return Response(VERSION, media_type=JSON)

    async def metrics(request: Request) -> Response:
        return Response(counters.text(), headers={"Content-Type": CONTENT_TYPE})

    routes = [
        Route("/invocations", invocations, methods=["POST"]),
        Route("/ping", alive),
        Route("/health", alive),
        Route("/version", version),
        Route("/metrics", metrics),
    ]
    return Starlette(routes=routes, lifespan=answering)


async def whole_body(request: Request) -> bytes | None:
    """The body of a request; None if it is larger than ``MAX_BODY``, in which case the rest is not read."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def refused(status: int, problem: str) -> Response:
    """An error response, in the format of MLflow's server."""
    code = {500: "INTERNAL_ERROR"}.get(status, "BAD_REQUEST")
    error = {"error_code": code, "message": without_credentials(problem)}
    return Response(json.dumps(error), status_code=status, media_type=JSON)
