"""Python interface to the Triton core in this process."""

from openai_frontend.triton._core import (
    MappedFile,
    StreamWriter,
    json_member,
    relay_counts,
    run_step,
)
from openai_frontend.triton.library import LibraryNotFound
from openai_frontend.triton.model_health import NOT_READY, ModelIndexEntry
from openai_frontend.triton.options import Options
from openai_frontend.triton.responses import InferenceResponse, ResponseStream, Tensor
from openai_frontend.triton.server import Server

__all__ = [
    "NOT_READY",
    "InferenceResponse",
    "LibraryNotFound",
    "MappedFile",
    "ModelIndexEntry",
    "Options",
    "ResponseStream",
    "Server",
    "StreamWriter",
    "Tensor",
    "json_member",
    "relay_counts",
    "run_step",
]
