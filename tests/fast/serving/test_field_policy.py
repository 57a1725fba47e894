import logging
from typing import Any

import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as completion_params
import pytest
from openai.types import EmbeddingCreateParams

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_COMPLETIONS,
    NEUTRAL_IN_EMBEDDINGS,
    FieldPolicy,
)
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest


def chat_request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], **fields)


def check(policy: FieldPolicy | None = None, **fields: Any) -> None:
    (policy or FieldPolicy("warn")).check(chat_request(**fields), NEUTRAL_IN_CHAT)


def refusal(policy: FieldPolicy | None = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(policy, **fields)
    return refused.value


def test_unsupported_field_passes_with_its_default():
    check(FieldPolicy("reject"), audio=None)


def test_unknown_field_is_logged_once_per_name(caplog):
    """The default policy `warn` ignores the field."""
    policy = FieldPolicy("warn")

    with caplog.at_level(logging.WARNING):
        check(policy, nvext={"a": 1})
        check(policy, nvext={"a": 2}, chat_id="x")

    assert [record.args[0] for record in caplog.records] == ["nvext", "chat_id"]


def test_number_of_warnings_is_limited(caplog):
    """A client that invents names cannot fill the log or the memory."""
    policy = FieldPolicy("warn")

    check(policy, **{f"field{i}": 1 for i in range(1000)})

    assert len(caplog.records) == 256


def test_long_name_is_truncated_in_the_log(caplog):
    """A name can be as long as the body."""

    check(FieldPolicy("warn"), **{"x" * 100_000: 1})

    assert len(caplog.text) < 300


def test_policy_ignore_logs_nothing(caplog):
    check(FieldPolicy("ignore"), nvext={})

    assert caplog.records == []


def test_policy_reject_answers_as_openai_does():
    error = refusal(FieldPolicy("reject"), nvext={})

    assert (error.param, error.code) == ("nvext", "unknown_parameter")
    assert error.message == "Unknown parameter: 'nvext'."


def test_policy_applies_to_stream_options():
    error = refusal(FieldPolicy("reject"), stream=True, stream_options={"usage": True})

    assert (error.param, error.code) == ("stream_options.usage", "unknown_parameter")


MEMBERS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "text", "stric": 1}}, "response_format.stric"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "stric": True}}},
        "response_format.json_schema.stric",
    ),
    ({"structured_outputs": {"regexx": "a"}}, "structured_outputs.regexx"),
    ({"prediction": {"type": "content", "content": "", "x": 1}}, "prediction.x"),
    ({"prompt_cache_options": {"x": 1}}, "prompt_cache_options.x"),
    ({"repetition_detection": {"max_pattern_size": 1, "min_count": 2, "x": 1}},
     "repetition_detection.x"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), MEMBERS)
def test_policy_applies_inside_of_fields(fields, param):
    assert refusal(FieldPolicy("reject"), **fields).param == param


@pytest.mark.parametrize("stream", [None, False])
def test_stream_options_need_a_stream(stream):
    error = refusal(stream=stream, stream_options={"include_usage": True})

    assert error.param == "stream_options"


CHAT_FIELDS = {"stream", *chat_params.CompletionCreateParamsBase.__annotations__}
COMPLETION_FIELDS = {"stream", *completion_params.CompletionCreateParamsBase.__annotations__}
SDK: list[Any] = [
    (CHAT_FIELDS, ChatCompletionRequest, NEUTRAL_IN_CHAT),
    (COMPLETION_FIELDS, CompletionRequest, NEUTRAL_IN_COMPLETIONS),
    (set(EmbeddingCreateParams.__annotations__), EmbeddingRequest, NEUTRAL_IN_EMBEDDINGS),
]


@pytest.mark.parametrize(("names", "schema", "neutral"), SDK)
def test_every_field_of_the_sdk_is_known(names, schema, neutral):
    """The server reads, refuses or accepts each field that openai-python can send."""
    assert set() == names - set(schema.model_fields) - set(neutral)


@pytest.mark.parametrize(("names", "schema", "neutral"), SDK)
def test_schema_fields_are_not_in_a_table(names, schema, neutral):
    """The schema reads such a field first, so a table entry would have no effect."""
    assert set() == set(schema.model_fields) & set(neutral)


def test_members_of_an_undeclared_field_are_not_read():
    """Completions have no `prediction`: any value of it is one unknown field, not an error."""
    request = CompletionRequest.model_validate({"prompt": "a", "prediction": "x"})

    FieldPolicy("ignore").check(request, {})
