"""Reads a request's tensors and writes a response's, inside a stub."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def array(request: Any, name: str) -> Any:
    """The input as a NumPy array; None if the request has no such input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def scalar(request: Any, name: str, default: Any = None) -> Any:
    """The only element of an input."""
    given = array(request, name)
    return default if given is None else given.item()


def text(request: Any, name: str) -> str | None:
    """The only text of an input."""
    given = scalar(request, name)
    return None if given is None else given.decode()


def texts(request: Any, name: str) -> list[str]:
    """Every text of an input."""
    given = array(request, name)
    return [] if given is None else [each.decode() for each in given.ravel()]


def strings(name: str, values: list[str]) -> Any:
    """An output of texts."""
    return pb_utils.Tensor(name, np.array([value.encode() for value in values], dtype=np.object_))


def failure(message: str, code: int | None = None) -> Any:
    """An error response."""
    error = pb_utils.TritonError(message) if code is None else pb_utils.TritonError(message, code)
    return pb_utils.InferenceResponse(output_tensors=[], error=error)


def parameter(config: dict[str, Any], name: str, default: str = "") -> str:
    """A parameter of the model's config."""
    value: str = config["parameters"].get(name, {}).get("string_value", default)
    return value


FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
