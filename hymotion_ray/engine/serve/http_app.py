"""The FastAPI app over an office: routes, the page, and one form for every error. Ray-free.

Knows how requests are framed; what they do is in `routes.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from hymotion_ray import __version__
from hymotion_ray.engine.serve.batch_routes import batches, make_runner
from hymotion_ray.engine.serve.framing import Framing
from hymotion_ray.engine.serve.key_routes import own
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.engine.serve.metrics import CONTENT_TYPE
from hymotion_ray.engine.serve.office import Office
from hymotion_ray.engine.serve.page_files import INDEX, page_file
from hymotion_ray.engine.serve.routes import health, motions, retry_after


def make_app(office: Office) -> FastAPI:
    """The FastAPI app over an office, which it opens and closes."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await office.open()
        yield
        await office.close()

    app = FastAPI(
        title="hymotion-ray",
        version=__version__,
        description="Sentences in, 3D human motion out.",
        lifespan=life,
        redoc_url=None,
    )
    app.state.office = office
    office.batches = make_runner(office)
    app.include_router(motions)
    app.include_router(batches)
    app.include_router(own)
    app.include_router(health)

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus series of the process that answers."""
        return Response(office.metrics.text(), media_type=CONTENT_TYPE)

    if office.config.http.page:
        _add_page(app)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(
        Framing,
        metrics=office.metrics,
        max_body_bytes=office.config.limits.max_body_bytes,
        max_batch_bytes=office.config.limits.max_batch_bytes,
        names_answers=not office.on_ray,
    )
    return app


def _add_page(app: FastAPI) -> None:
    async def page(request: Request, name: str = INDEX) -> Response:
        file = page_file(name)
        if file is None:
            raise Refusal(404, "no_such_file", f"there is no {name!r}")
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=file.headers())
        return Response(file.content, media_type=file.media_type, headers=file.headers())

    app.add_api_route("/", page, include_in_schema=False, methods=["GET"])
    app.add_api_route("/assets/{name}", page, include_in_schema=False, methods=["GET"])


def _error(
    request: Request,
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    fields: list[dict[str, str]] | None = None,
) -> JSONResponse:
    body: dict[str, Any] = {"code": code, "message": message}
    if fields is not None:
        body["fields"] = fields
    answer = {"error": body, "request_id": getattr(request.state, "request_id", "")}
    return JSONResponse(answer, status_code=status, headers=dict(headers or {}))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    office: Office = request.app.state.office
    if error.status in (429, 503):
        key = getattr(request.state, "key", "anonymous")
        office.metrics.count("shed", {"reason": error.code, "key": key})
    headers = retry_after(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _error(request, error.status, error.code, error.message, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [
        {
            "field": ".".join(str(part) for part in fault["loc"] if part != "body"),
            "message": str(fault["msg"]),
        }
        for fault in error.errors()
    ]
    words = "; ".join(f"{f['field']}: {f['message']}" for f in fields[:5])
    return _error(request, 422, "invalid", words, fields=fields)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return _error(request, error.status_code, "http", str(error.detail), headers)


def _methods(request: Request) -> set[str]:
    """What may be done to a path: one route knows its own methods only."""
    path = request.scope["path"]
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    return {
        method for route in routes if route.path_regex.match(path) for method in route.methods or ()
    }
