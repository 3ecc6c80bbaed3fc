"""Answers to a request instead of a result: a status, a code and a message.

Each protocol writes them in its own form; none of them says anything about the server's files.
"""

from __future__ import annotations

from edgecompile.runtime.base.errors import (
    EdgecompileError,
    InputError,
    MemoryLimitError,
    ModelClosedError,
    TokenizerError,
)


class ServerError(Exception):
    """A refusal or a failure.

    Args:
        message: the problem, with the numbers, and the cure on a line of its own.
        retry_after: after how many seconds it may be worth trying again; None: never as it is.
    """

    status = 500
    code = "internal"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class BadRequest(ServerError):
    """The request can't be read, or its inputs don't fit the model."""

    status = 400
    code = "invalid_request"


class MalformedHead(BadRequest):
    """The request's headers can be read in two ways: nothing more is read from its connection."""


class Unauthorized(ServerError):
    """No key, or not one of the server's."""

    status = 401
    code = "unauthorized"


class UnknownModel(ServerError):
    """There is no model or version of this name; also no such address."""

    status = 404
    code = "not_found"


class WrongMethod(ServerError):
    """The address takes another method."""

    status = 405
    code = "wrong_method"
    #: The methods that it takes.
    allow = ""


class TooLarge(ServerError):
    """The request has more bytes, elements or texts than the server takes."""

    status = 413
    code = "too_large"


class HeadersTooLarge(ServerError):
    """The request has more or larger headers than the server takes: its connection is closed."""

    status = 431
    code = "headers_too_large"


class WrongMedia(ServerError):
    """The body's encoding isn't understood."""

    status = 415
    code = "unsupported_media"


class Unprocessable(ServerError):
    """The request is well-formed, but the model can't do that."""

    status = 422
    code = "unprocessable"


class Quarantined(Unprocessable):
    """The request ran in several workers when they died."""

    code = "quarantined"


class Overloaded(ServerError):
    """The queue is full, or the request couldn't end before its deadline."""

    status = 429
    code = "overloaded"


class NotReady(ServerError):
    """The model isn't ready yet."""

    status = 503
    code = "not_ready"


class Draining(NotReady):
    """The server is about to end."""

    code = "draining"


class DeadlineExceeded(ServerError):
    """The deadline passed before there was an answer."""

    status = 504
    code = "deadline_exceeded"


class StartError(EdgecompileError):
    """The server can't be started: its address is taken, or a package that it needs isn't there."""

    exit_code = 50


def no_memory() -> NotReady:
    """The answer where memory is lacking, for the request itself or for its run."""
    return NotReady("there isn't the memory for this request now", 1.0)


def translate(error: EdgecompileError) -> ServerError:
    """The answer to a client for an error of the runtime."""
    if isinstance(error, InputError):
        return BadRequest(str(error))
    if isinstance(error, TokenizerError):
        return Unprocessable(str(error))
    if isinstance(error, ModelClosedError):
        return Draining("the model is closed", 1.0)
    if isinstance(error, MemoryLimitError):
        return no_memory()
    return ServerError("the model failed: " + error.message)
