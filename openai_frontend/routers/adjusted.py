"""The response header that names hints which the model got otherwise than the request has them."""

from collections.abc import Mapping
from typing import Any

_NAME = "x-adjusted-parameters"

# as OpenAPI describes it
ADJUSTED_PARAMETERS: dict[str, Any] = {
    _NAME: {
        "description": "The values of `reasoning_effort` and `verbosity` that the chat template "
        "got in place of the request's, or `ignored`. Absent if it got them as they are.",
        "schema": {"type": "string"},
        "example": "reasoning_effort=low, verbosity=ignored",
    }
}


def adjusted_parameters(fields: Mapping[str, str]) -> dict[str, str]:
    """The header; nothing if no hint was adjusted."""
    told = ", ".join(f"{name}={value}" for name, value in fields.items())
    return {_NAME: told} if told else {}
