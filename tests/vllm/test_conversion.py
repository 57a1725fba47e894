"""A request's fields in vLLM's form, and the fields that vLLM cannot honour; no engine runs."""

from typing import Any

import pytest

from openai_frontend.engines.vllm import conversion
from openai_frontend.generation import SamplingParams

pytestmark = pytest.mark.engine


def converted(**params: Any) -> Any:
    return conversion.sampling_params(SamplingParams(**params), {}, stream=True)


def test_extra_args_are_unchanged():
    """Scalars and lists of scalars reach the engine's plug-ins."""
    given = {"a": "x", "b": 1.5, "c": True, "d": [1, "y"], "e": 2**64 - 1, "f": -(2**63)}

    assert converted(extra_args=given).extra_args == given


EXTRA_ARGS: list[dict[str, Any]] = [
    {"kv_transfer_params": "x"},
    {"a": 1, "ec_transfer_params": ["x"]},
    {"kv_cache_report_mode": "full"},
    {"a": {"b": 1}},
    {"a": [[1]]},
    {"a": [{"b": 1}]},
    {"a": None},
    {"a": 2**64},
    {"a": [-(2**63) - 1]},
]


@pytest.mark.parametrize("given", EXTRA_ARGS, ids=range(len(EXTRA_ARGS)))
def test_reserved_extra_args_are_refused(given):
    """An argument that controls the engine itself, or that plug-ins cannot receive, is refused by
    name.
    """
    with pytest.raises(ValueError, match=r"^extra_args: "):
        converted(extra_args=given)


@pytest.mark.parametrize(
    "wanted",
    [{"banana": 1}, {"max_pattern_size": -1}, {"max_pattern_size": 2, "min_count": 1}],
)
def test_repetition_detection_error_names_the_field(wanted):
    """vLLM's own message names no field."""
    with pytest.raises(ValueError, match=r"^repetition_detection: "):
        converted(repetition_detection=wanted)


@pytest.mark.parametrize("name", ["beam_width", "length_penalty"])
def test_unsupported_parameter_is_refused(name):
    """The error names the parameter of another backend."""
    with pytest.raises(ValueError, match=f"^{name}: "):
        converted(**{name: 2})


@pytest.mark.parametrize("name", conversion.MAX_TOKEN_IDS)
def test_too_many_token_ids_are_refused(name):
    """They would crash vLLM's worker; the error names the field."""
    ids = dict.fromkeys(range(1025), 1.0)

    with pytest.raises(ValueError, match=f"^{name}: at most 1024 tokens"):
        converted(**{name: ids if name == "logit_bias" else list(ids)})


def test_parameters_that_requests_share_are_converted_once():
    """For each kind of output; parameters with lists or objects are converted each time."""
    shared = conversion.SharedParams({"temperature": 0.5})
    plain, listed = SamplingParams(max_tokens=5), SamplingParams(stop=["a"])

    streamed, whole = shared.convert(plain, stream=True), shared.convert(plain, stream=False)

    assert shared.convert(plain, stream=True) is streamed
    assert streamed.output_kind != whole.output_kind
    assert (streamed.max_tokens, streamed.temperature, whole.max_tokens) == (5, 0.5, 5)
    assert shared.convert(listed, stream=True) is not shared.convert(listed, stream=True)


def test_shared_parameters_are_bounded_and_of_their_own_objects():
    """An id that another object gets later finds nothing of the first one."""
    shared = conversion.SharedParams({})

    for seed in range(1000):
        assert shared.convert(SamplingParams(seed=seed), stream=True).seed == seed
