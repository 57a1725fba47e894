"""A request's fields in vLLM's form, and the fields that vLLM cannot honour; no engine runs."""

import contextlib
import gc
import inspect
import json
import re
import shutil
import weakref
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.engine import ConstraintError, EngineError
from openai_frontend.engines.vllm import conversion
from openai_frontend.generation import (
    RESERVED_ARGS,
    Adapter,
    GenerationRequest,
    SamplingParams,
    StructuredOutputs,
)

pytestmark = pytest.mark.engine

LONG = StructuredOutputs(json={"const": "a" * 8192})


def converted(**params: Any) -> Any:
    return conversion.sampling_params(SamplingParams(**params), {}, stream=True)


def test_extra_args_are_unchanged():
    """Scalars and lists of scalars reach the engine's plug-ins."""
    given = {"a": "x", "b": 1.5, "c": True, "d": [1, "y"], "e": 2**64 - 1, "f": -(2**63)}

    assert converted(extra_args=given).extra_args == given


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        ({}, {}, True),
        ({"skip_special_tokens": False}, {}, False),
        ({"skip_special_tokens": False}, {"generation_config": "vllm"}, True),
        ({}, {"override_generation_config": {"skip_special_tokens": False}}, False),
        ({"skip_special_tokens": "no"}, {}, True),
    ],
)
def test_model_decides_on_special_tokens(tmp_path, file, options, expected):
    """By its generation_config.json, as vLLM's own server does since 0.33; requests take
    precedence.
    """
    from vllm.config import ModelConfig

    demo = Path(__file__).parents[2] / "model_repository" / "demo" / "1" / "weights"
    shutil.copytree(demo, tmp_path / "model")
    settings = tmp_path / "model" / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": 2} | file))
    defaults = conversion.model_defaults(ModelConfig(str(tmp_path / "model"), **options))

    def skips(**params: Any) -> bool:
        value = conversion.sampling_params(SamplingParams(**params), defaults, stream=True)
        assert isinstance(value.skip_special_tokens, bool)
        return value.skip_special_tokens

    assert skips() == expected
    assert skips(skip_special_tokens=True) is True
    assert skips(skip_special_tokens=False) is False


EXTRA_ARGS: list[dict[str, Any]] = [
    *({"a": 1, name: value} for name in sorted(RESERVED_ARGS) for value in (1, "x", ["x"])),
    {"a": {"b": 1}},
    {"a": [[1]]},
    {"a": [{"b": 1}]},
    {"a": None},
    {"a": 2**64},
    {"a": [-(2**63) - 1]},
]


def test_arguments_that_vllm_reads_are_reserved():
    """A release of vLLM that reads another one needs an entry in the table."""
    from vllm.v1 import request

    source = Path(inspect.getfile(request)).read_text()

    assert set(re.findall(r"extra_args\.get\(\s*\"(\w+)\"", source)) <= RESERVED_ARGS


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
    """For each kind of output; parameters with lists or objects are converted each time, but not
    those with a short constraint or short stop strings.
    """
    shared = conversion.SharedParams({"temperature": 0.5})
    plain, listed = SamplingParams(max_tokens=5), SamplingParams(bad_words=["a"])

    streamed, whole = shared.convert(plain, stream=True), shared.convert(plain, stream=False)

    assert shared.convert(plain, stream=True) is streamed
    assert streamed.output_kind != whole.output_kind
    assert (streamed.max_tokens, streamed.temperature, whole.max_tokens) == (5, 0.5, 5)
    assert shared.convert(listed, stream=True) is not shared.convert(listed, stream=True)
    for text, is_shared in (("a", True), ("a" * 8192, False)):
        constraint = StructuredOutputs(json={"const": text})
        for params in (SamplingParams(structured_outputs=constraint), SamplingParams(stop=(text,))):
            again = shared.convert(params, stream=True)
            assert (shared.convert(params, stream=True) is again) == is_shared


def test_shared_parameters_are_bounded_and_of_their_own_objects():
    """An id that another object gets later finds nothing of the first one."""
    shared = conversion.SharedParams({})

    for seed in range(1000):
        assert shared.convert(SamplingParams(seed=seed), stream=True).seed == seed


def processed(params: Any, **fields: Any) -> Any:
    """What vLLM's input processor makes of a request."""
    from vllm.v1.engine import EngineCoreRequest

    common: dict[str, Any] = {
        "prompt_token_ids": [1, 2], "mm_features": None, "pooling_params": None,
        "arrival_time": 0.0, "lora_request": None, "cache_salt": None, "data_parallel_rank": None,
    }  # fmt: skip
    return EngineCoreRequest(**{**common, "request_id": "1", "sampling_params": params, **fields})


def make(templates: conversion.RequestTemplates, params: Any, request: GenerationRequest) -> Any:
    assert request.prompt_token_ids is not None
    return templates.make(params, request, request.prompt_token_ids)


def generation(token_ids: Any, **fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id="2", prompt_token_ids=token_ids, **fields)


@pytest.mark.parametrize("kind", [list, lambda ids: array("i", ids)], ids=["list", "array"])
@pytest.mark.parametrize("token_ids", [[5], [0, 127, 128, 255, 65535, 65536, 99_999]], ids=len)
def test_request_from_a_template_reads_as_one_of_the_processor(kind, token_ids):
    """The engine's process decodes the same prompt, whichever form it had here."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    params = converted(max_tokens=5)
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=100_000)
    templates.keep(params, processed(params))

    made = make(templates, params, generation(kind(token_ids), cache_salt="s", priority=3))

    read = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(made))
    assert read.prompt_token_ids == token_ids
    assert (read.request_id, read.external_req_id) == ("2", "2")
    assert (read.cache_salt, read.priority, read.sampling_params.max_tokens) == ("s", 3, 5)
    assert read.arrival_time > 0


@pytest.mark.parametrize(
    "request_",
    [
        generation([]),
        generation(range(64)),  # leaves no room for a token
        generation([1, 512]),
        generation([-1]),
        generation([1], adapter=Adapter(name="a", id=1)),
    ],
    ids=["empty", "too long", "outside the vocabulary", "negative", "adapter"],
)
def test_request_that_the_processor_may_refuse_has_no_template(request_):
    params = converted(max_tokens=5)
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)
    templates.keep(params, processed(params))

    assert make(templates, params, generation([1, 511])) is not None
    assert make(templates, params, request_) is None
    assert make(templates, converted(max_tokens=5), generation([1])) is None


@pytest.mark.parametrize(
    ("fields", "of_request"),
    [
        ({"min_tokens": 5}, {}),
        ({"max_tokens": 5, "logit_bias": {1: 1.0}}, {}),
        ({"max_tokens": 5, "structured_outputs": LONG}, {}),
        ({"max_tokens": 5, "stop": ["a" * 8192]}, {}),
        ({"max_tokens": 5}, {"lora_request": object()}),
        ({"max_tokens": 5}, {"mm_features": [object()]}),
    ],
    ids=["min_tokens", "logit_bias", "long constraint", "long stop", "adapter", "images"],
)
def test_parameters_that_depend_on_the_request_are_not_kept(fields, of_request):
    """The prompt's length decides whether it leaves room for min_tokens, for example. Long ones
    are not shared, and would only fill the memory.
    """
    params = converted(**fields)
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)

    templates.keep(params, processed(params, **of_request))

    assert make(templates, params, generation([1])) is None


def test_constraint_that_becomes_long_when_it_is_prepared_is_not_kept():
    """A schema of 6 KB with date-times becomes one of 55 KB."""
    params = converted(max_tokens=5, structured_outputs=StructuredOutputs(json={"const": "a"}))
    prepared = converted(max_tokens=5, structured_outputs=LONG)
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)

    templates.keep(params, processed(params, sampling_params=prepared))

    assert make(templates, params, generation([1])) is None


def test_request_without_max_tokens_may_fill_the_context():
    """It depends on the prompt's length, and changes no other request."""
    params = converted()
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)
    templates.keep(params, processed(params))

    made = [make(templates, params, generation([1] * length)) for length in (1, 63, 10)]

    assert [each.sampling_params.max_tokens for each in made] == [63, 1, 54]


def test_template_keeps_no_prompt():
    """It would stay in memory, and is a client's content."""
    params = converted(max_tokens=5)
    first = processed(params, cache_salt="s")
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)

    templates.keep(params, first)

    ((_, kept),) = templates._known.values()
    assert (kept.prompt_token_ids, kept.cache_salt) == (None, None)
    assert first.prompt_token_ids == [1, 2]


def test_templates_are_bounded():
    templates = conversion.RequestTemplates(max_model_len=64, vocab_size=512)
    for _ in range(1000):
        params = converted(max_tokens=5)
        templates.keep(params, processed(params))

    assert len(templates._known) <= 256
    assert make(templates, params, generation([1])) is not None


class Client:
    """Has an engine's threads and descriptors."""


def raise_as_vllm(error: Exception, client: Client) -> None:
    """As its output collector does, from a variable, so that the error refers to itself."""
    raise error


def test_death_of_an_engine_keeps_nothing_of_it():
    """Also without the cyclic garbage collector, which rarely runs in a gateway."""
    from vllm.v1.engine.exceptions import EngineDeadError

    client = Client()
    kept = weakref.ref(client)
    gc.disable()
    try:
        with pytest.raises(EngineError), conversion.translate_errors():
            raise_as_vllm(EngineDeadError(), client)
        del client
        assert kept() is None
    finally:
        gc.enable()


def test_only_vllms_check_of_constraints_refuses_a_constraint():
    """Another refusal of the same request does not, whatever its words."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))
    model, config = SimpleNamespace(is_diffusion=False), SimpleNamespace(backend="xgrammar")

    with pytest.raises(ConstraintError), conversion.translate_errors(params):
        params._validate_structured_outputs(model, config, object())
    with pytest.raises(ValueError, match="too long") as other, conversion.translate_errors(params):
        raise VLLMValidationError("structured_outputs: the prompt is too long")
    assert type(other.value) is ValueError


def test_translated_error_is_in_no_cycle():
    """It refers to the engine by its frames, and a lost engine's threads and descriptors must go
    with it.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    class Engine:
        pass

    def ask(engine: Engine) -> None:
        with conversion.translate_errors():
            raise EngineDeadError

    engine = Engine()
    kept = weakref.ref(engine)
    gc.disable()
    try:
        with contextlib.suppress(EngineError):
            ask(engine)
        del engine
        assert kept() is None
    finally:
        gc.enable()
