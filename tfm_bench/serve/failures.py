"""What a client is told when a request fails: one line of JSON, in a stream as an event."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CHAT = "/v1/chat/completions"
logger = logging.getLogger("uvicorn.error")


async def refused(_: Request, error: Exception) -> Response:
    """Bad input."""
    return _response(str(error), HTTPStatus.BAD_REQUEST)


async def failed(_: Request, error: Exception) -> Response:
    """No fault of the client's."""
    _log(error)
    return _response(str(error), HTTPStatus.INTERNAL_SERVER_ERROR)


async def no_route(request: Request, error: Exception) -> Response:
    """A path that is not served, or not by this method."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    path = request.url.path
    message = f"{request.method} {path}: {error.detail.lower()}"
    if path == CHAT:
        message += "; /v1/completions is there"
    elif error.headers:
        message += f"; accepted are {error.headers['Allow']}"
    response = _response(message, error.status_code)
    response.headers.update(error.headers or {})
    return response


def failure_event(error: Exception) -> dict[str, Any]:
    """An event, with SGLang's keys, of a stream that has begun, so that its status is 200 already."""
    _log(error)
    code = HTTPStatus.INTERNAL_SERVER_ERROR
    return {"error": {"message": str(error), "type": "InternalServerError", "code": code.value}}


def _log(error: Exception) -> None:
    logger.error("A request failed", exc_info=error)


def _response(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status_code=status)
