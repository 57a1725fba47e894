import json
from codecs import BOM_UTF8
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.request_body import BodyReader, RepeatedBodyReader
from openai_frontend.triton import json_member
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest

CHAT = BodyReader(ChatCompletionRequest)
COMPLETIONS = BodyReader(CompletionRequest)
USER = {"role": "user", "content": "hi"}


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def completion_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi", **fields}).encode()


def refusal(reader: BodyReader[Any], body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        reader.parse(body)
    return refused.value


WRONG_TYPES = [
    ({"max_tokens": 16.0}, "max_tokens", "an integer, but got a decimal"),
    ({"messages": None}, "messages", "an array, but got null"),
    ({"messages": "hi"}, "messages", "an array, but got a string"),
    ({"messages": [7]}, "messages[0]", "an object, but got an integer"),
    ({"messages": [{"role": 7}]}, "messages[0].role", "a string, but got an integer"),
    (
        {"messages": [{"role": "user", "content": 7}]},
        "messages[0].content",
        "one of a string or an array of objects, but got an integer",
    ),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": {}}]}]},
        "messages[1].content[0].text",
        "a string, but got an object",
    ),
    ({"stop": 7}, "stop", "one of a string or an array of strings, but got an integer"),
    ({"stop": ["a", 7]}, "stop[1]", "a string, but got an integer"),
    ({"metadata": {"a": 1}}, "metadata.a", "a string, but got an integer"),
    ({"stream_options": []}, "stream_options", "an object, but got an array"),
    (
        {"chat_template_kwargs": {"a": []}},
        "chat_template_kwargs.a",
        "one of a string, a boolean, an integer or a decimal, but got an array",
    ),
]


@pytest.mark.parametrize(("fields", "param", "expected"), WRONG_TYPES)
def test_wrong_type_is_refused_by_path(fields, param, expected):
    """The message has the expected type and the type received."""

    error = refusal(CHAT, chat_body(**fields))

    assert f"Invalid type for '{param}': expected {expected} instead." == error.message
    assert (param, "invalid_type") == (error.param, error.code)


OUT_OF_BOUNDS = [
    ({"n": 130}, "n", "integer above maximum value. Expected a value <= 128, but got 130"),
    ({"n": 0}, "n", "integer below minimum value. Expected a value >= 1, but got 0"),
    ({"top_k": -2}, "top_k", "integer below minimum value. Expected a value >= -1, but got -2"),
    (
        {"seed": 2**63},
        "seed",
        "integer above maximum value. Expected a value <= 9223372036854775807, "
        "but got 9223372036854775808",
    ),
    (
        {"temperature": 3},
        "temperature",
        "decimal above maximum value. Expected a value <= 2, but got 3",
    ),
    ({"top_p": -0.5}, "top_p", "decimal below minimum value. Expected a value >= 0, but got -0.5"),
    (
        {"repetition_penalty": 0},
        "repetition_penalty",
        "decimal below minimum value. Expected a value > 0, but got 0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "expected"), OUT_OF_BOUNDS)
def test_number_out_of_range_is_refused_with_the_limit(fields, param, expected):
    """The message also has the number."""

    error = refusal(CHAT, chat_body(**fields))

    assert f"Invalid '{param}': {expected} instead." == error.message
    code = expected.split(". ")[0].replace(" ", "_").replace("imum", "")
    assert (param, code) == (error.param, error.code)


LENGTHS = [
    ({"stop": ""}, "stop", "empty_string"),
    ({"stop": [""]}, "stop[0]", "empty_string"),
]


@pytest.mark.parametrize(("fields", "param", "code"), LENGTHS)
def test_empty_text_is_refused(fields, param, code):
    """The error names the field; tests/api/test_limits.py has the other lengths."""

    error = refusal(CHAT, chat_body(**fields))

    assert (param, code) == (error.param, error.code)


def test_unknown_role_error_lists_the_roles():
    error = refusal(CHAT, chat_body(messages=[{"role": "robot", "content": "hi"}]))

    assert error.message == (
        "Invalid value: 'robot'. Supported values are: "
        "'developer', 'system', 'user', 'assistant', 'tool' and 'function'."
    )
    assert (error.param, error.code) == ("messages[0].role", "invalid_value")


PROMPTS = [
    ([1, "a"], "prompt[1]", "invalid_type"),
    (["a", 1], "prompt[1]", "invalid_type"),
    ([[1, "a"]], "prompt[0][1]", "invalid_type"),
    ([True], "prompt[0]", "invalid_type"),
    ([], "prompt", "empty_array"),
    ([[]], "prompt[0]", "empty_array"),
    ([-1], "prompt[0]", "integer_below_min_value"),
    ([[2**31]], "prompt[0][0]", "integer_above_max_value"),
    ({}, "prompt", "invalid_type"),
]


@pytest.mark.parametrize(("prompt", "param", "code"), PROMPTS)
def test_wrong_prompt_is_reported_for_its_closest_form(prompt, param, code):
    """The error is that of the form, out of four, that fits the value best."""

    error = refusal(COMPLETIONS, completion_body(prompt=prompt))

    assert (param, code) == (error.param, error.code)


@pytest.mark.parametrize("prompt", [None, "", "a", ["a", ""], [1, 2], [[1], [2, 3]]])
def test_all_four_prompt_forms_are_read_unchanged(prompt):
    request = COMPLETIONS.parse(completion_body(prompt=prompt))

    assert prompt == request.prompt


MALFORMED = [
    b"",
    b"{",
    b"hello",
    b"\xff\xfe{}",
    chat_body() + b"x",
    b'{"model": "\\ud800"}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\udc00 lone"}]}',
    b'{"messages": ' + b"[" * 100_000,
    b'{"x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    b'{"n": ' + b"9" * 5000 + b"}",
    chat_body(temperature=float("nan")),
    chat_body(temperature=float("-inf")),
    chat_body(unknown=[float("nan")]),
    chat_body(**{f"field{number}": 1 for number in range(300)}),
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_json_is_refused(body):
    """Examples: NaN, lone surrogates, deep nesting, too many fields."""

    error = refusal(CHAT, body)

    assert (error.param, error.code) == (None, "json_invalid")
    assert error.message.startswith("We could not parse the JSON body of your request: ")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_body_must_be_an_object(body):
    """The error is a wrong type without a field."""

    error = refusal(CHAT, body)

    assert (error.param, error.code) == (None, "invalid_type")


def test_text_may_contain_nan_and_infinity():
    request = CHAT.parse(chat_body(messages=[{"role": "user", "content": "NaN, Infinity"}]))

    assert request.messages[0].get("content") == "NaN, Infinity"


@pytest.mark.parametrize("number", ["1e999", "1e400000", "-1e999"])
def test_number_beyond_a_float_is_refused(number):
    body = chat_body(temperature=1).replace(
        b'"temperature": 1', f'"temperature": {number}'.encode()
    )

    error = refusal(CHAT, body)

    assert (error.param, error.code) == ("temperature", "invalid_value")


def test_error_repeats_only_the_start_of_a_value():
    error = refusal(CHAT, chat_body(messages=[{"role": "x" * 100_000, "content": "hi"}]))

    assert len(error.message) < 250


def test_first_wrong_item_ends_the_validation_of_a_list():
    """A million wrong items cost no more than one."""

    with pytest.raises(ValidationError) as refused:
        TypeAdapter(ChatCompletionRequest).validate_json(chat_body(messages=[1] * 100_000))

    assert refused.value.error_count() == 1


texts = st.text('aé"\\<[😀\u2028', max_size=5)  # all of Unicode takes seconds to set up
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)  # fmt: skip
field_names = st.sampled_from(sorted(ChatCompletionRequest.model_fields))


@given(st.dictionaries(field_names, json_values, max_size=4))
def test_any_json_in_known_fields_is_read_or_refused_with_an_openai_error(fields):
    outcome = outcome_of(chat_body(**fields))

    if isinstance(outcome, InvalidRequest):
        assert outcome.code is not None
    else:
        assert outcome.model_fields_set == {"model", "messages", *fields}


def outcome_of(body: bytes) -> ChatCompletionRequest | InvalidRequest:
    try:
        return CHAT.parse(body)
    except InvalidRequest as error:
        return error


@pytest.mark.parametrize("body", [b"", b"{}"], ids=["empty", "short"])
def test_short_body_gets_the_error_of_pydantic(body):
    with pytest.raises(InvalidRequest) as expected:
        CHAT._validate_json(body)
    assert refusal(CHAT, body).message == expected.value.message


LONG = [
    completion_body(prompt='é"\n' * 20_000),
    completion_body(prompt=[*range(20_000)]),
    completion_body(prompt=[[*range(20_000)], [7]]),
    completion_body(prompt=["text"] * 5000, stop=["a"], logit_bias={"7": 1.5}),
]


@pytest.mark.parametrize("body", LONG, ids=["text", "ids", "lists of ids", "texts"])
async def test_long_body_gives_the_same_request_in_slices(body):
    """Pydantic's own parser gives an equal request."""
    assert COMPLETIONS._validate_json(body) == await COMPLETIONS.read(body)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
async def test_long_body_keeps_integers_beyond_64_bits(number):
    """As a short one does, where no schema has the field's type; with another prompt too."""
    schema = {"type": "integer", "maximum": number}
    readers = [CHAT, RepeatedBodyReader(ChatCompletionRequest, "messages", json_member)]

    for reader in readers:
        for length in (1, 20_000, 20_001, 100_000):
            function = {"name": "f", "arguments": {"a": number, "b": "x" * length}}
            calls = [{"id": "a", "type": "function", "function": function}]
            messages = [USER, {"role": "assistant", "tool_calls": calls}]
            request = await read(reader, chat_body(messages=messages, guided_json=schema))

            assert schema == request.guided_json
            assert messages == request.messages


async def read(reader: BodyReader[Any], body: bytes) -> Any:
    if isinstance(reader, RepeatedBodyReader):
        return (await reader.read_known(body))[0]
    return await reader.read(body)


LONG_AND_WRONG = [
    completion_body(prompt=[*range(20_000), -1]),
    completion_body(prompt=[*range(20_000), True]),
    completion_body(prompt=[*range(20_000), 1.0]),
    completion_body(prompt=[*range(20_000), 2**31]),
    completion_body(prompt=[*range(20_000), 2**64]),
    completion_body(prompt=[*range(20_000), []]),
    completion_body(prompt=[*range(20_000), "1"]),
    completion_body(prompt="x" * 20_000, n="1"),
    completion_body(prompt="x" * 20_000, top_p=float("nan")),
    completion_body(prompt="x" * 20_000)[:-1],
]


@pytest.mark.parametrize("body", LONG_AND_WRONG, ids=lambda body: str(body[-24:]))
async def test_long_body_gives_the_same_error_in_slices(body):
    """Pydantic's own parser gives an equal error."""
    with pytest.raises(InvalidRequest) as in_turns:
        await COMPLETIONS.read(body)
    with pytest.raises(InvalidRequest) as at_once:
        COMPLETIONS._validate_json(body)
    assert (at_once.value.message, at_once.value.param) == (
        in_turns.value.message,
        in_turns.value.param,
    )


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"), ("utf-32-be", "UTF-32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [1, 30_000])
async def test_error_names_an_encoding_other_than_utf_8(codec, name, length):
    """It does so with and without a byte order mark."""
    body = chat_body(user="x" * length).decode().encode(codec)
    with pytest.raises(InvalidRequest, match=f"encoded as {name}. Send it as UTF-8"):
        CHAT.parse(body)
    with pytest.raises(InvalidRequest, match=f"encoded as {name}. Send it as UTF-8"):
        await CHAT.read(body)


@pytest.mark.parametrize("length", [1, 300])
async def test_utf_8_byte_order_mark_is_skipped(length):
    """Short and long bodies may begin with one."""
    body = BOM_UTF8 + chat_body(messages=[USER] * length)

    read = [CHAT.parse(body), await CHAT.read(body)]

    assert [len(each.messages) for each in read] == [length] * 2
