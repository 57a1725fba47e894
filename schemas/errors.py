"""The body of every error response."""

from pydantic import BaseModel


class ErrorObject(BaseModel):
    """The error: `code` is for programs, `param` is the field that caused it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of a response that is not a success."""

    error: ErrorObject
