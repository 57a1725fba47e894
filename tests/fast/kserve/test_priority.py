"""The priority that a client with a key may ask for in tensors and parameters."""

import struct
from typing import Any

import pytest

from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import priority
from openai_frontend.kserve.models import ModelAddress, ModelAdmission
from openai_frontend.kserve.parameters import RequestOptions
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from tests.fast.auth.key_files import caller
from tests.fast.auth.key_files import key as key_of

MODEL = ModelAddress("m")
LEVELS = {"dynamic_batching": {"priority_levels": "5", "default_priority_level": "3"}}


class Core:
    """A core with one model."""

    def __init__(self, **config: Any) -> None:
        self._config = {"backend": "inprocess", **config}

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        return self._config


def requested(value: int) -> dict[str, Any]:
    return {"priority": ("INT32", (1,), struct.pack("<i", value))}


@pytest.mark.parametrize(
    ("key", "asked", "given"), [("k", -(2**31), 0), ("k", -1, 0), ("k", 7, 7), ("", -1, -1)]
)
def test_tensor(key, asked, given):
    """A request with a key cannot overtake those that do not ask for a priority."""
    inputs = priority.limited(requested(asked), Core(), MODEL, key)  # type: ignore[arg-type]

    assert inputs == requested(given)


def test_tensor_of_another_backend():
    """It may mean something else there."""
    core = Core(backend="tensorrtllm")

    assert priority.limited(requested(-1), core, MODEL, "k") == requested(-1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tensor", [("INT64", (1,), bytes(8)), ("INT32", (2,), bytes(8)), ("BYTES", (1,), bytes(4))]
)
def test_tensor_of_another_form(tensor):
    """It is rejected by name."""
    with pytest.raises(InvalidRequest, match="'priority'"):
        priority.limited({"priority": tensor}, Core(), MODEL, "k")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "asked", "given"), [("k", 1, 3), ("k", 4, 4), ("k", 0, 0), ("k", 9, 9), ("", 1, 1)]
)
async def test_level(key, asked, given):
    """The same for the levels of the core's queue."""
    admission = ModelAdmission(
        Core(**LEVELS),  # type: ignore[arg-type]
        use=None,  # type: ignore[arg-type]
        admission=Admission(ConcurrencyLimiter(8)),
        limits_for=lambda _: NO_LIMITS,
        cache_salts=None,  # type: ignore[arg-type]
    )

    who = caller(key_of(key)) if key else None
    context = RequestContext("r", principal=who)
    async with admission.slot(context, MODEL, RequestOptions(priority=asked)) as options:
        assert options.priority == given
