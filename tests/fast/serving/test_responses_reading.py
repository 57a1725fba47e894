"""Requests of /v1/responses as conversations: items, tools, fields, and what is refused."""

import base64
import functools
import operator
from typing import Any

import orjson
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import CompletionDelta, StructuredOutputs
from openai_frontend.media.modalities import ImageInput
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.responses.input_items import read_input
from openai_frontend.serving.dialects.responses.reader import Responses, Turns
from openai_frontend.serving.dialects.responses.response_object import ResponseJob
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import Media, MediaReader
from openai_frontend.serving.request.sealed_text import UNENCRYPTED, Unsealer
from schemas.responses import ResponsesRequest
from tests.fast.serving.fake_model import FakeModel, admission, last

RESPONSES = Responses(Conversations(InferenceLimits(), admission()), FieldPolicy("ignore"))
STRICT = Responses(Conversations(InferenceLimits(), admission()), FieldPolicy("reject"))
honours, accepts = pytest.mark.honours, pytest.mark.accepts
READ: dict[str, Any] = {"type": "function", "name": "read", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch"}
SEARCH = {"type": "tool_search", "execution": "client"}
DEFERRED = {**READ, "name": "later", "defer_loading": True}
SPACE = {"type": "namespace", "name": "fs", "tools": [READ, PATCH]}
HOSTED = {"type": "web_search"}
BIG = 10**30


def model(**options: Any) -> Any:
    return FakeModel(
        [[CompletionDelta("Hello")], [last(completion=1)]],
        output_format=OutputFormat(family=BY_NAME["qwen3"]),
        template_variables=frozenset({"tools"}),
        **options,
    )


async def prepared(
    given: Any = "hi", responses: Responses = RESPONSES, target: Any = None, **fields: Any
) -> ResponseJob:
    """`fields` may have another `input`."""
    request = ResponsesRequest.model_validate({"input": given, **fields})
    return await responses.prepare(request, target or model())


def messages(*items: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    request = ResponsesRequest.model_validate({"input": [*items]})
    read = read_input(request.input, ToolNames().flat, **options)
    return [dict(message) for message in read.messages]


CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "text"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]}
SAID: dict[str, Any] = {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}


def test_one_turn_of_the_assistant_is_one_message():
    question = {"role": "user", "content": [{"type": "input_text", "text": "Go."}]}

    first, turn, result, end = messages(question, THOUGHT, SAID, CALL, RESULT, SAID)

    assert first == {"role": "user", "content": "Go."}
    assert (turn["content"], turn["reasoning_content"]) == ("Yes.", "hm")
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["read"]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "text"}
    assert end == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("item", "content"),
    [
        (
            {"type": "web_search_call", "id": "ws_1", "query": "x"},
            '[web_search_call {"query":"x"}]',
        ),
        ({"type": "mcp_list_tools", "tools": []}, '[mcp_list_tools {"tools":[]}]'),
        (SAID, "Yes."),
    ],
)
def test_items_of_other_servers_become_notes(item, content):
    assert [each["content"] for each in messages(item)] == [content]


@pytest.mark.parametrize("item", [{"type": "compaction"}, {"type": "newer_than_this"}])
def test_items_without_meaning_here_are_skipped(item):
    assert len(messages({"role": "user", "content": "x"}, item)) == 1


@pytest.mark.parametrize(
    ("sealed", "expected"),
    [(UNENCRYPTED("own ä"), "own ä"), ("gAAAAforeign", "hm"), ("ofr1.broken", "hm"), (None, "hm")],
)
def test_own_sealed_reasoning_wins_and_foreign_is_ignored(sealed, expected):
    turn, _ = messages({**THOUGHT, "encrypted_content": sealed}, CALL, RESULT)
    assert turn["reasoning_content"] == expected


def test_damaged_seals_are_not_read():
    whole = UNENCRYPTED("text" * 1000)
    assert Unsealer().read(whole) == "text" * 1000
    assert [Unsealer().read(whole[:-9]), Unsealer().read("ofr1.%%"), Unsealer().read("")] == [
        None,
        None,
        None,
    ]


def test_sealed_texts_of_a_request_are_limited_together():
    """Each of a hundred texts of 5 KB may have 4 MB: the event loop was blocked for seconds."""
    large = {**THOUGHT, "encrypted_content": UNENCRYPTED("ab" * 2**20)}

    turn, _ = messages(large, large, large, CALL, RESULT)

    assert turn["reasoning_content"] == "\n".join(["ab" * 2**20] * 2 + ["hm"])


def test_damaged_seals_count_too():
    """An error at the end of a text comes after the work."""
    damaged = base64.b64decode(UNENCRYPTED("a" * 2**22)[5:])[:-1] + b"?"
    sealed = "ofr1." + base64.b64encode(damaged).decode()
    reader = Unsealer()

    assert [reader.read(sealed), reader.read(UNENCRYPTED("own"))] == [None, None]
    assert Unsealer().read(UNENCRYPTED("own")) == "own"


@honours("responses.reasoning.context")
def test_current_turn_leaves_out_earlier_reasoning():
    items = [THOUGHT, SAID, {"role": "user", "content": "And?"}, THOUGHT, SAID]

    turns = messages(*items, all_reasoning=False)

    assert ["reasoning_content" in turn for turn in turns] == [False, False, True]


def test_outputs_may_be_parts_and_lack_an_id():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    [result] = messages({"type": "function_call_output", "output": parts, "call_id": None})
    assert (result["role"], result["content"]) == ("tool", "a\nb")
    assert result["tool_call_id"]


async def test_tools_of_a_namespace_get_one_flat_name_and_are_called_by_both():
    job = await prepared(tools=[SPACE, READ])

    names = job.form.names.by_flat
    assert names["fs__read"] == ToolName("function", "read", "fs")
    assert names["fs__patch"] == ToolName("custom", "patch", "fs")
    assert names["read"] == ToolName("function", "read")
    assert job.job.tools.allowed == {"fs__read", "fs__patch", "read"}


async def test_long_and_colliding_names_stay_apart():
    long = {"type": "namespace", "name": "n" * 60, "tools": [READ, {**READ, "name": "read2"}]}
    plain = {**READ, "name": "fs__read"}

    job = await prepared(tools=[plain, SPACE, long])

    flat = [*job.form.names.by_flat]
    assert len(set(flat)) == len(flat) == 5
    assert max(map(len, flat)) <= 64
    assert job.form.names.flat("read", "fs") != "fs__read"


@pytest.mark.parametrize("plain", [False, True])
async def test_names_that_collide_in_any_order_lead_back_to_their_tools(plain):
    """Also if one of the tools is found later."""
    alike = {**READ, "name": "fs__read"}
    added = {"type": "additional_tools", "tools": [SPACE if plain else alike]}

    job = await prepared(
        [{"role": "user", "content": "x"}, added], tools=[alike if plain else SPACE]
    )

    called = {job.form.names.by_flat[name] for name in job.job.tools.allowed}
    assert {ToolName("function", "read", "fs"), ToolName("function", "fs__read")} <= called
    assert len(called) == 3


@honours("responses.tools.tool_search", "responses.tools.tool_search.execution")
@honours("responses.tools.function.defer_loading", "responses.tools.custom.defer_loading")
@pytest.mark.parametrize(
    ("tools", "items", "allowed"),
    [
        ([DEFERRED, READ], (), {"later", "read"}),  # nothing could find it
        ([DEFERRED, SEARCH], (), {"tool_search"}),
        ([{**PATCH, "defer_loading": True}, SEARCH], (), {"tool_search"}),
        ([{**SPACE, "defer_loading": True}, SEARCH], (), {"tool_search"}),
        ([DEFERRED, SEARCH], ({"type": "tool_search_output", "tools": [DEFERRED]},),
         {"tool_search", "later"}),
        ([READ], ({"type": "additional_tools", "tools": [PATCH]},), {"read", "patch"}),
        ([], ({"type": "additional_tools", "tools": [READ]},), {"read"}),
        ([READ, HOSTED], (), {"read"}),
    ],
)  # fmt: skip
async def test_tools_that_the_model_may_call(tools, items, allowed):
    given = [{"role": "user", "content": "x"}, *items]
    job = await prepared(given, tools=tools)
    assert job.job.tools.allowed == allowed


FINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "a deferred function": ([SEARCH, DEFERRED], DEFERRED, ["later"]),
    "a function that the request lacks": ([SEARCH], DEFERRED, ["later"]),
    "a namespace": ([SEARCH], SPACE, ["fs__read", "fs__patch"]),
    "a function that is offered": ([SEARCH, READ], READ, []),
}


@pytest.mark.parametrize(("tools", "tool", "names"), FINDS.values(), ids=FINDS)
async def test_search_does_not_change_the_beginning_of_the_prompt(tools, tool, names):
    """What it finds is described in its output, so that the cached prefix stays."""
    target, question = model(), {"role": "user", "content": "x"}
    call = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {}}
    output = {"type": "tool_search_output", "call_id": "s", "tools": [tool]}

    await prepared([question], target=target, tools=tools)
    job = await prepared([question, call, output], target=target, tools=tools)

    (_, before), (messages, after) = target.rendered
    assert before["tools"] == after["tools"]
    assert job.job.tools.allowed >= {*names}
    described = orjson.loads(messages[-1]["content"])["tools"]
    assert [each["name"] for each in described if isinstance(each, dict)] == names


async def test_found_tools_without_others_are_at_the_beginning_of_the_prompt():
    """There, a template tells the model how to call them."""
    target, output = model(), {"type": "tool_search_output", "call_id": "s", "tools": [READ]}

    await prepared([{"role": "user", "content": "x"}, output], target=target)

    _, rendered = target.rendered[0]
    assert [tool["function"]["name"] for tool in rendered["tools"]] == ["read"]


async def test_hosted_tools_are_left_out_and_named():
    job = await prepared(tools=[HOSTED, READ])

    assert job.job.adjusted == {"tools.web_search": "ignored"}
    assert [tool["type"] for tool in orjson.loads(b"{" + job.echo)["tools"]] == ["function"]
    with pytest.raises(InvalidRequest, match=r"tools\.web_search"):
        await prepared(tools=[HOSTED], responses=STRICT)


@pytest.mark.parametrize("type", ["a\r\nx-y: z", "ü", ""])
async def test_types_that_no_header_can_have_are_not_named(type):
    job = await prepared(tools=[{"type": type}, READ, HOSTED])
    assert job.job.adjusted == {"tools.other": "ignored", "tools.web_search": "ignored"}


async def test_header_names_a_few_types():
    job = await prepared(tools=[{"type": f"t{at}"} for at in range(200)])
    assert len(job.job.adjusted) == 17
    assert job.job.adjusted["tools.other"] == "ignored"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{**READ, "parameters": {"type": "object", "maximum": BIG}}]},
        {"tools": [{**READ, "more": BIG}]},
        {"tools": [READ], "tool_choice": {"type": "function", "name": "read", "more": BIG}},
    ],
)
async def test_response_repeats_integers_beyond_64_bits(fields):
    job = await prepared(**fields)
    assert str(BIG).encode() in job.echo


@pytest.mark.parametrize("kind", ["tool_search_call", "web_search_call"])
def test_calls_may_have_integers_beyond_64_bits(kind):
    assert str(BIG) in str(messages({"type": kind, "arguments": {"n": BIG}}))


@honours(
    "responses.tool_choice",
    *(
        f"responses.tool_choice.{name}"
        for name in (
            "none", "auto", "required", "function", "function.name", "custom", "custom.name",
            "namespace", "allowed_tools", "allowed_tools.mode", "allowed_tools.tools",
            "tools.name", "tools.namespace",
        )
    ),
)  # fmt: skip
@pytest.mark.parametrize(
    ("choice", "mode", "allowed"),
    [
        ("none", "none", {"read", "fs__read", "fs__patch"}),
        ("auto", "auto", {"read", "fs__read", "fs__patch"}),
        ("required", "required", {"read", "fs__read", "fs__patch"}),
        ({"type": "function", "name": "read"}, "required", {"read"}),
        ({"type": "function", "name": "read", "namespace": "fs"}, "required", {"fs__read"}),
        ({"type": "custom", "name": "patch", "namespace": "fs"}, "required", {"fs__patch"}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read"},
                                                             {"type": "web_search"}]},
         "auto", {"read"}),
        ({"type": "allowed_tools", "mode": "required",
          "tools": [{"type": "custom", "name": "patch", "namespace": "fs"}]},
         "required", {"fs__patch"}),
    ],
)  # fmt: skip
async def test_choice_limits_the_tools(choice, mode, allowed):
    job = await prepared(tools=[READ, SPACE], tool_choice=choice)
    assert (job.job.tools.choice, job.job.tools.allowed) == (mode, allowed)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"include": ["nonsense"]}, "include[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [HOSTED], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [READ], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": [READ], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    ({"tools": [READ], "tool_choice": {"type": "custom", "name": "read"}}, "tool_choice.name"),
    ({"tools": [READ, READ]}, "tools[1].name"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
     "text.format.schema.type"),
    ({"text": {"format": {"type": "text", "json_schema": {"schema": {}}}}},
     "text.format.json_schema"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ({"input": [{"type": "compaction_trigger"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
     "input[0].content[0].text"),
    *(
        ({"input": [{"role": "user", "content": [part]}]}, f"input[0].content[0].{name}")
        for part, name in [
            ({"type": "input_text", "text": "a", "image_url": "data:,"}, "image_url"),
            ({"type": "input_text", "text": "a", "refusal": "no"}, "refusal"),
            ({"type": "input_text", "text": "a", "input_audio": {"data": ""}}, "input_audio"),
            ({"type": "input_image", "image_url": "data:,", "text": "a"}, "text"),
            ({"type": "input_file", "file_data": "data:text/plain;base64,YQ==", "text": "a"},
             "text"),
            ({"type": "refusal", "refusal": "no", "text": "a"}, "text"),
        ]
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
     "input[0].content[0].file_id"),
    ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"fromat": {"type": "json_object"}}}, "text.fromat"),
        ({"text": {"format": {"type": "json_object", "x": 1}}}, "text.format.x"),
        ({"reasoning": {"x": 1}}, "reasoning.x"),
    ],
)
async def test_unknown_members_follow_the_policy(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        await prepared(**fields, responses=STRICT)
    assert (refused.value.param, refused.value.code) == (param, "unknown_parameter")

    await prepared(**fields)


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_refusals_name_the_field(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        await prepared(**fields)
    assert refused.value.param == param


async def test_too_long_input_has_openais_wording_and_numbers():
    with pytest.raises(ContextLengthExceeded) as refused:
        await prepared("x" * 50, target=model(max_model_len=20))

    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
    assert refused.value.message.startswith("Your input exceeds the context window of this model.")
    assert "50 tokens" in refused.value.message


@honours("responses.truncation")
async def test_truncation_drops_whole_oldest_turns_and_keeps_the_system():
    target = model(max_model_len=24)
    turns = [[{"role": "user", "content": letter * 5}, CALL, {**RESULT, "output": letter}]
             for letter in "abcd"]  # fmt: skip
    items = [{"role": "system", "content": "sys"}, *functools.reduce(operator.iadd, turns, [])]

    await prepared(items, target=target, truncation="auto", tools=[READ])

    rendered, _ = target.rendered[-1]
    assert [each["content"] for each in rendered if each["role"] == "user"] == [
        "bbbbb",
        "ccccc",
        "ddddd",
    ]
    assert rendered[0]["content"] == "sys"
    assert rendered[1]["role"] == "user"


def picture(letter: str) -> dict[str, Any]:
    url = "data:image/png;base64," + letter * 4
    return {"type": "input_image", "image_url": url}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_images_of_the_system_stay_with_its_messages(role):
    kept = {"role": role, "content": [picture("s")]}
    turns = [{"role": "user", "content": [picture(letter)]} for letter in "ab"]
    items = [turns[0], kept, {"role": "assistant", "content": "x"}, turns[1]]
    request = ResponsesRequest.model_validate({"input": items})
    _, conversation = RESPONSES._read(request, model(), None)

    left = Turns(conversation).without(1)

    assert [message["role"] for message in left.messages] == [role, "user"]
    urls = [media.part["image_url"]["url"][-4:] for media in left.media]
    assert urls == ["ssss", "bbbb"]


class CountingReader(MediaReader):
    """Counts the items that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_items = 0

    async def read(self, parts: Any, model: Any) -> Media:
        self.read_items += len(parts)
        texts = (each.part["image_url"]["url"][-4:] for each in parts)
        images = (
            ImageInput(base64=text, digest=text, width=1, height=1, format="png") for text in texts
        )
        return Media(images=tuple(images))


async def test_truncation_reads_media_once():
    """Whatever the number of turns that it tries to leave out."""
    reader = CountingReader()
    conversations = Conversations(InferenceLimits(), admission(), media=reader)
    turns = [{"role": "user", "content": [picture(letter), {"type": "input_text", "text": "x" * 5}]}
             for letter in "abcdefgh"]  # fmt: skip
    items = [each for turn in turns for each in (turn, SAID)][:-1]
    target = model(max_model_len=200)

    job = await prepared(items, Responses(conversations, FieldPolicy("ignore")), target,
                         truncation="auto")  # fmt: skip

    [request] = job.job.requests
    assert len(target.rendered) > 2
    assert reader.read_items == 8
    assert 0 < len(request.images) < 8
    kept = [letter * 4 for letter in "abcdefgh"[-len(request.images) :]]
    assert [image.base64 for image in request.images] == kept


@honours("responses.max_output_tokens")
async def test_output_is_shortened_to_what_fits():
    job = await prepared("x" * 10, target=model(max_model_len=16), max_output_tokens=500)
    assert job.job.requests[0].sampling_params.max_tokens == 6


async def test_instructions_are_the_first_message_of_the_system():
    target = model()
    await prepared("hi", target=target, instructions="Be brief.")
    rendered, _ = target.rendered[-1]
    assert [(each["role"], each["content"]) for each in rendered] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
DESCRIBED = {**FORMAT, "description": "d", "strict": True}
IN_FORMAT = ("", ".json_schema", ".json_schema.schema", ".json_object")
WITHOUT_EFFECT = (".text", ".json_schema.name", ".json_schema.description", ".json_schema.strict")
TEXTS = "responses.text", "responses.input.configuration_update.text"


def updated(**fields: Any) -> list[Any]:
    """An input with an update of the configuration."""
    return [{"role": "user", "content": "x"}, {"type": "configuration_update", **fields}]


@honours(*TEXTS, "responses.input.configuration_update")
@honours(*(f"{text}.format{name}" for text in TEXTS for name in IN_FORMAT))
@accepts(*(f"{text}.format{name}" for text in TEXTS for name in WITHOUT_EFFECT))
@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        (FORMAT, StructuredOutputs(json=SCHEMA)),
        (DESCRIBED, StructuredOutputs(json=SCHEMA)),
        ({"type": "json_object"}, StructuredOutputs(json_object=True)),
        ({"type": "text"}, None),
    ],
)
@pytest.mark.parametrize("within_input", [False, True])
async def test_format_of_the_text_constrains_the_output(form, constraint, within_input):
    """Every schema is enforced strictly; its name and description are for people."""
    text: dict[str, Any] = {"text": {"format": form}}

    job = await prepared(
        **({"given": updated(**text)} if within_input else text), target=FakeModel()
    )

    assert job.job.requests[0].sampling_params.structured_outputs == constraint
    assert orjson.loads(b"{" + job.echo)["text"]["format"] == form


HINTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
    ({"given": updated(reasoning={"effort": "low"})}, {"reasoning_effort": "low"}),
]


@honours("responses.reasoning", "responses.reasoning.effort", "responses.text.verbosity")
@honours("responses.input.configuration_update.reasoning")
@honours("responses.input.configuration_update.reasoning.effort")
@pytest.mark.parametrize(("fields", "variables"), HINTS)
async def test_hints_reach_the_template(fields, variables):
    target = FakeModel(template_variables=frozenset({"reasoning_effort", "verbosity"}))

    await prepared(**fields, target=target)

    assert target.rendered[-1][1]["template_kwargs"] == variables


@accepts(
    *(
        f"responses.input.configuration_update.{name}"
        for name in ("reasoning.summary", "reasoning.generate_summary", "reasoning.context",
                     "reasoning.mode", "text.verbosity")
    )
)  # fmt: skip
async def test_other_settings_within_the_input_have_no_effect():
    reasoning = {"summary": "auto", "context": "current_turn", "generate_summary": "auto",
                 "mode": "standard"}  # fmt: skip

    job = await prepared(updated(reasoning=reasoning, text={"verbosity": "low"}))

    echo = orjson.loads(b"{" + job.echo)
    assert (echo["reasoning"]["summary"], echo["text"]["verbosity"]) == (None, "medium")
    assert not job.form.summaries


@honours("responses.reasoning.summary", "responses.reasoning.generate_summary")
@pytest.mark.parametrize("name", ["summary", "generate_summary"])
async def test_reasoning_is_a_summary_if_the_request_asks_for_one(name):
    assert (await prepared(reasoning={name: "auto"})).form.summaries


@honours("responses.include", "responses.top_logprobs")
async def test_included_log_probabilities_are_asked_of_the_model():
    job = await prepared(include=["message.output_text.logprobs"], top_logprobs=3)
    assert job.job.requests[0].sampling_params.logprobs == 3


@honours("responses.parallel_tool_calls")
@pytest.mark.parametrize("parallel", [True, False])
async def test_parallel_calls_are_those_of_the_request(parallel):
    job = await prepared(tools=[READ], parallel_tool_calls=parallel)
    assert job.job.tools.parallel is parallel


GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "zebra"}


@honours(
    *(
        f"responses.tools.custom.format{name}"
        for name in ("", ".grammar", ".grammar.definition", ".grammar.syntax")
    )
)
@accepts("responses.tools.custom.format.text")
@pytest.mark.parametrize(("form", "enforced"), [(GRAMMAR, True), ({"type": "text"}, False)])
async def test_grammar_of_a_tool_is_enforced(form, enforced):
    choice = {"type": "custom", "name": "patch"}

    job = await prepared(tools=[{**PATCH, "format": form}], tool_choice=choice)

    constraint = job.job.requests[0].sampling_params.structured_outputs
    assert ("zebra" in repr(constraint)) is enforced


@honours("responses.tools.function.strict")
@pytest.mark.parametrize("strict", [True, False])
async def test_strict_function_constrains_its_arguments(strict):
    job = await prepared(tools=[{**READ, "strict": strict}])
    assert (job.job.requests[0].sampling_params.structured_outputs is not None) is strict


def test_item_with_an_empty_type_is_an_unknown_one():
    """Not a message: nothing has checked whether it has a role."""
    request = ResponsesRequest.model_validate(
        {"input": [{"type": ""}, {"role": "user", "content": "Go."}]}
    )

    read = read_input(request.input, ToolNames().flat)

    assert read.unknown == ["input[0].type="]
    assert [message["role"] for message in read.messages] == ["user"]
