"""What the API's description says of failures below /v2."""

from typing import Any

from schemas.kserve import KServeError

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": KServeError, "description": "The request cannot be served as it is."},
    "5XX": {"model": KServeError, "description": "The server or the model failed."},
}
