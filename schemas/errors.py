"""The error envelope, the same for every failure."""

from pydantic import BaseModel


class ErrorObject(BaseModel):
    """What went wrong: `code` is a word for programs, `param` the field that caused it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorObject
