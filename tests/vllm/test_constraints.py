"""Constrained answers of the demo model, at a temperature that makes its tokens random."""

import asyncio
import json
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import psutil
import pytest

from openai_frontend import errors
from openai_frontend.engines.vllm.grammars.backends import prepare_constraint
from openai_frontend.generation import StructuredOutputs
from openai_frontend.parsing.events import ReasoningText
from openai_frontend.parsing.family import Reasoning
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.request.sampling import Constraint
from openai_frontend.serving.request.tools import Tools
from openai_frontend.triton import Server
from tests.examples import scaled
from tests.fast.parsing.samples import complete
from tests.vllm.calls import calls_of
from tests.vllm.conftest import needs_grammar_engines
from tests.vllm.constrained_answers import PERSON, QUESTION, answers, held, offered, read
from tests.vllm.published_schemas import cases
from tests.vllm.random_answers import RandomAnswers
from tests.vllm.random_schemas import arguments_schema
from tests.vllm.requests import answer, completion_tokens
from tests.vllm.slow_grammar import SLOW_GRAMMAR

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

streamed = pytest.mark.parametrize("stream", [True, False])


@needs_grammar_engines
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "requests"), [("hermes", 80), ("qwen3_coder", 20), ("functiongemma", 20)]
)
async def test_required_calls_match_random_schemas(server: Server, family: str, requests: int):
    """Each call of two functions with random schemas is parsed, and its arguments validate.

    The families: one with JSON arguments, one with arguments in tags, and one whose own syntax has
    no grammar here.
    """
    tools = [
        offered({"f": arguments_schema(2 * n), "g": arguments_schema(2 * n + 1)}, parallel=False)
        for n in range(requests)
    ]
    constraints = [held(family, each) for each in tools]

    told = await answers(server, constraints)

    ended = 0
    for each, given, delta in zip(tools, constraints, told, strict=True):
        if delta.finish_reason == "length":  # for example a list of lists of lists
            continue
        ended += 1
        ((name, arguments),) = calls_of(read(family, each, given, delta.text))
        jsonschema.validate(json.loads(arguments), each.functions[name])
    assert ended >= requests * 0.95


@needs_grammar_engines
@pytest.mark.slow
async def test_named_calls_match_random_schemas(server: Server):
    count = scaled(40)  # the next test names calls of 150 more
    tools = [offered({"f": arguments_schema(1000 + n), "g": PERSON}) for n in range(count)]
    tools = [offered(each.functions, allowed=frozenset({"f"})) for each in tools]
    constraints = [held("hermes", each) for each in tools]

    told = await answers(server, constraints)

    ended = [delta for delta in told if delta.finish_reason != "length"]
    assert len(ended) >= len(told) * 0.9
    for each, given, delta in zip(tools, constraints, told, strict=True):
        if delta.finish_reason != "length":
            ((name, arguments),) = calls_of(read("hermes", each, given, delta.text))
            assert name == "f"
            jsonschema.validate(json.loads(arguments), each.functions["f"])


@needs_grammar_engines
@pytest.mark.slow
async def test_calls_match_the_json_schema_test_suite(server: Server):
    """Each schema of JSON Schema's test suite is part of a function's arguments: the call
    validates, or the request is refused with the path of the schema. Calls are required and named
    in turn.
    """
    made: list[tuple[Tools, Constraint]] = []
    refused = 0
    for number, case in enumerate(cases()):
        functions = {"f": case.arguments(), "g": PERSON} if number % 2 else {"f": case.arguments()}
        tools = offered(functions, allowed=frozenset("f"))
        try:
            made.append((tools, held("hermes", tools)))
        except errors.InvalidRequest as error:
            assert str(error.param).startswith("tools[0].function.parameters.properties.value")  # noqa: PT017
            refused += 1

    told = await answers(server, [given for _, given in made], max_tokens=250, refusable=True)

    ended = 0
    for (tools, given), delta in zip(made, told, strict=True):
        if isinstance(delta, errors.InvalidRequest):
            assert delta.message.startswith("structured_outputs.schemas[0]: ")
            refused += 1
        elif delta.finish_reason != "length":
            ((name, arguments),) = calls_of(read("hermes", tools, given, delta.text))
            jsonschema.validate(json.loads(arguments), tools.functions[name])
            ended += 1
    assert (ended > 110, refused + ended > 300) == (True, True), (ended, refused)


FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@needs_grammar_engines
@streamed
async def test_json_schema_at_high_temperature(server: Server, stream: bool):
    """At a temperature of 1.5 an answer parses and validates, streamed or whole."""
    given = held("hermes", response_format=FORM)

    for delta in await answers(server, [given] * 48, stream=stream):
        assert delta.finish_reason == "stop"
        jsonschema.validate(json.loads(delta.text), PERSON)


@needs_grammar_engines
@streamed
async def test_json_schema_cut_by_the_token_limit(server: Server, stream: bool):
    """An answer cut by the limit has finish_reason `length` and is a prefix of the full answer."""
    given = held("hermes", response_format=FORM)
    options: dict[str, Any] = {"temperature": 0.0, "stream": stream}

    (whole,) = await answers(server, [given], **options)
    length = completion_tokens(whole)
    for limit in (1, 5, length - 2):
        (cut,) = await answers(server, [given], max_tokens=limit, **options)
        assert (cut.finish_reason, completion_tokens(cut)) == ("length", limit)
        assert whole.text.startswith(cut.text)
    (same,) = await answers(server, [given], max_tokens=length, **options)
    assert same.text == whole.text


@needs_grammar_engines
@streamed
async def test_json_schema_cut_at_any_length(server: Server, stream: bool):
    """At a temperature of 1.5, an answer that a limit cuts has finish_reason `length` and is the
    prefix of a valid one; an answer that ends within the limit is valid.
    """
    given = held("hermes", response_format=FORM)
    from vllm.sampling_params import StructuredOutputsParams

    possible = RandomAnswers(
        prepare_constraint(StructuredOutputsParams(json=PERSON)).structural_tag
    )

    for limit in (3, 20, 45):
        for delta in await answers(server, [given] * 16, stream=stream, max_tokens=limit):
            assert completion_tokens(delta) <= limit
            if delta.finish_reason == "length":
                assert completion_tokens(delta) == limit
                assert possible.begins(delta.text.rstrip("\ufffd"))  # an incomplete character
            else:
                jsonschema.validate(json.loads(delta.text), PERSON)


FULL: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 60, "maxLength": 60},
        "words": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 9, "maxItems": 9},
        "code": {"type": "string", "pattern": "^[A-Z]{100}$"},
    },
    "required": ["text", "words", "code"],
    "additionalProperties": False,
}


@needs_grammar_engines
@streamed
async def test_json_schema_with_length_bounds(server: Server, stream: bool):
    """Strings and arrays with an exact length end."""
    form = {"type": "json_schema", "json_schema": {"name": "full", "schema": FULL, "strict": True}}

    for delta in await answers(server, [held("hermes", response_format=form)] * 8, stream=stream):
        assert delta.finish_reason == "stop"
        jsonschema.validate(json.loads(delta.text), FULL)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]+x"}}, "[0-9]{3}-[a-f]+x"),
    ({"guided_choice": ["yes", "no", 'a "maybe"']}, 'yes|no|a "maybe"'),
    ({"ebnf": 'root ::= "a" rest\nrest ::= "b" | "c" rest'}, "ac*b"),
    ({"guided_grammar": 'start: "a" WORD\nWORD: /[b-d]{1,5}/'}, "a[b-d]{1,5}"),
]


@streamed
@pytest.mark.parametrize(("fields", "pattern"), FORMS, ids=str)
async def test_other_constraints_at_high_temperature(server: Server, fields, pattern, stream):
    """Regular expressions, choices and grammars are enforced too."""
    given = held("hermes", **fields)

    for delta in await answers(server, [given] * 16, stream=stream, max_tokens=400):
        assert delta.finish_reason == "length" or re.fullmatch(pattern, delta.text), delta.text


LLGUIDANCE: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 1, "maximum": 300, "multipleOf": 7},
    {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z ]{150,200}$"},
]


@needs_grammar_engines
async def test_llguidance_enforces_what_xgrammar_ignores(server: Server):
    """Both engines serve side by side."""
    schemas = [schema for _ in range(8) for schema in (PERSON, *LLGUIDANCE)]
    forms = [{"type": "json_schema", "json_schema": {"name": "x", "schema": s}} for s in schemas]

    told = await answers(server, [held("hermes", response_format=form) for form in forms])

    for schema, delta in zip(schemas, told, strict=True):
        assert delta.finish_reason == "stop"
        jsonschema.validate(json.loads(delta.text), schema)


# The demo model was not trained to reason, but its sentences end.
THINKS = replace(BY_NAME["qwen3"], reasoning=Reasoning(start="<think>", end="."))


@needs_grammar_engines
@streamed
async def test_reasoning_tools_and_response_format_in_one_request(server: Server, stream: bool):
    """A model that is reasoning ends it, and then calls a tool or answers in the format."""
    tools = offered({"f": PERSON}, "auto")
    given = held(THINKS, tools, reasoning_open=True, response_format=FORM)

    told = await answers(server, [given] * 32, stream=stream)

    ended = [delta.text for delta in told if delta.finish_reason == "stop"]
    assert len(ended) > 16
    called = 0
    for text in ended:
        parser = OutputFormat(family=THINKS).parser(tools.functions, prompt="<think>")
        first, *rest = complete(parser, text)
        assert isinstance(first, ReasoningText) or text.startswith(".")
        if calls := calls_of(rest):
            called += 1
            assert all(name == "f" for name, _ in calls)
        for value in [arguments for _, arguments in calls] or [text.partition(".")[2]]:
            jsonschema.validate(json.loads(value), PERSON)
    assert 0 < called < len(ended)


REFUSED: dict[str, tuple[StructuredOutputs, str]] = {
    "a bad pattern": (
        StructuredOutputs(json={"type": "string", "pattern": "("}),
        "structured_outputs: .*parenthesis",
    ),
    "no value at all": (
        StructuredOutputs(json={"type": "object", "properties": {"a": False}, "required": ["a"]}),
        "structured_outputs: .*false",
    ),
    "nobody's keyword": (StructuredOutputs(json={"not": {}}), "structured_outputs: .*not"),
    "too large": (
        StructuredOutputs(regex="((a{1,1000}){1,1000}){1,1000}"),
        "structured_outputs: .*repetition",
    ),
    "properties": (
        StructuredOutputs(json={"properties": {f"p{i}": {} for i in range(5000)}}),
        "structured_outputs: at most 1000 properties of an object may be optional",
    ),
}


@pytest.mark.parametrize("model", ["demo", "demo-async-llm"])
@pytest.mark.parametrize(("structured", "message"), REFUSED.values(), ids=REFUSED)
async def test_unsupported_constraint_is_refused(server: Server, model, structured, message):
    """The error comes at once and has the reason; the next request is served."""
    begun = time.perf_counter()
    with pytest.raises(errors.InvalidRequest, match=message):
        await answer(server, model, QUESTION, structured_outputs=structured, max_tokens=9)
    assert time.perf_counter() - begun < 60  # with the start of the sandbox

    valid = StructuredOutputs(regex="ok")
    next_one = await answer(server, model, QUESTION, structured_outputs=valid, max_tokens=9)
    assert next_one.text == "ok"


@pytest.mark.slow
async def test_slow_grammar_is_refused(server: Server):
    """It is refused after some seconds; meanwhile another grammar compiles and is enforced."""
    first = StructuredOutputs(regex="ok")  # starts the process that compiles grammars on trial
    await answer(server, "demo", QUESTION, structured_outputs=first, max_tokens=9)
    hostile = asyncio.ensure_future(
        answer(
            server,
            "demo",
            QUESTION,
            structured_outputs=StructuredOutputs(grammar=SLOW_GRAMMAR),
            max_tokens=9,
        )
    )
    await asyncio.sleep(0.1)

    valid = StructuredOutputs(regex="so[o]{5}")
    beside = await answer(server, "demo", QUESTION, structured_outputs=valid, max_tokens=9)

    assert beside.text == "soooooo"
    assert not hostile.done()  # so it has not waited for 8 s of CPU time
    with pytest.raises(errors.InvalidRequest, match=r"structured_outputs: .* more than \d+ s"):
        async with asyncio.timeout(300):
            await hostile


async def test_grammar_compilation_does_not_block_the_event_loop(server: Server):
    """A large schema is prepared and compiled outside the event loop.

    Of some schemas, each unknown to the engine: other programs hold the processor for seconds, but
    not each time.
    """
    longest_s = []
    for number in range(4):
        longest_s.append(await longest_wait(server, f"p{number}_"))
        if longest_s[-1] < 1:
            break
    assert min(longest_s) < 1, longest_s


async def longest_wait(server: Server, prefix: str) -> float:
    """Seconds that the event loop was held while a large schema was compiled, beyond a quarter of
    the time of the compilation.
    """
    properties = {
        f"{prefix}{i}": {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}
        for i in range(500)
    }
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    structured = StructuredOutputs(json=schema)
    task = asyncio.ensure_future(
        answer(server, "demo", QUESTION, structured_outputs=structured, max_tokens=4)
    )

    started, longest = time.perf_counter(), 0.0
    while not task.done():
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - begun)

    assert (await task).finish_reason == "length"
    # The compilation takes most of the time, some seconds; on a busy machine, more of them.
    return 0 if longest < (time.perf_counter() - started) / 4 else longest


PEOPLE = {"type": "array", "items": PERSON, "minItems": 50, "$defs": PERSON["$defs"]}
LENGTH = 48  # tokens, each in a step of its own


async def free_token_cost(server: Server, form: StructuredOutputs | None) -> float:
    """Engine CPU seconds per token of 8 unconstrained requests, next to 200 with the constraint."""
    engines = [
        each for each in psutil.Process().children(recursive=True) if "EngineCore" in each.name()
    ]
    assert engines
    free: dict[str, Any] = {"temperature": 1.0, "max_tokens": LENGTH, "ignore_eos": True}
    others = free if form is None else {**free, "structured_outputs": form, "ignore_eos": False}

    def used() -> float:
        return sum(sum(each.cpu_times()[:2]) for each in engines)

    crowd = asyncio.gather(*(answer(server, "demo", QUESTION, **others) for _ in range(200)))
    before = used()
    told = await asyncio.gather(*(answer(server, "demo", QUESTION, **free) for _ in range(8)))
    spent = used() - before
    told += await crowd
    assert {completion_tokens(each) for each in told} == {LENGTH}
    return spent / LENGTH


@needs_grammar_engines
@pytest.mark.slow
async def test_200_constrained_requests_at_once(server: Server):
    """The engine's time per token is at most 1.2 times that with 200 unconstrained requests, and
    every request gets its answer.
    """
    form = {"type": "json_schema", "json_schema": {"name": "people", "schema": PEOPLE}}
    given = held("hermes", response_format=form).structured
    await free_token_cost(server, given)  # compiles the grammar

    def ratio() -> float:
        free, constrained = (statistics.median(each) for each in zip(*costs, strict=True))
        return float(constrained / free)

    # Three times, and more often on a machine that makes figures differ
    costs: list[tuple[float, float]] = []
    while len(costs) < 3 or (ratio() > 1.2 and len(costs) < 9):
        costs.append((await free_token_cost(server, None), await free_token_cost(server, given)))
    assert ratio() <= 1.2, costs


@needs_grammar_engines
@streamed
async def test_answer_whose_grammar_breaks_is_an_error(server: Server, stream: bool):
    """Its text so far is no whole answer. Other requests go on."""
    # The trial answer is fast: the time grows with the length of the answer
    parts = [f"r{i}" for i in range(6)]
    rules = [f"e: /[ab]/ | {' | '.join(parts)}", *(f"{part}: e e" for part in parts)]
    given = {"grammar": "\n".join(["start: e", *rules])}
    constraints = [held("hermes", structured_outputs=given)]
    others = asyncio.gather(*(answer(server, "demo", QUESTION, max_tokens=20) for _ in range(3)))

    with pytest.raises(errors.InvalidRequest, match="the grammar became too large or too slow"):
        await answers(server, constraints, stream=stream, min_tokens=350)
    assert all(map(completion_tokens, await others))


@needs_grammar_engines
async def test_pattern_of_many_readings_is_refused_with_its_path(server: Server):
    """llguidance would give it up within the answer."""
    text = {"type": "string", "pattern": "^(.{0,100},){0,100}$"}
    schema = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}

    with pytest.raises(errors.InvalidRequest, match=r"properties\.text.*up to 10100 readings"):
        await answers(server, [held("hermes", response_format=form)])


@needs_grammar_engines
@pytest.mark.parametrize("model", ["demo", "demo-async-llm"])
@streamed
async def test_allowed_tokens_that_the_constraint_excludes_are_an_error(
    server: Server, model: str, stream: bool
):
    """The request's, from the first token that both exclude on; not the server's."""
    chosen = StructuredOutputs(choice=("yes",))
    free = await answer(
        server, model, QUESTION, structured_outputs=chosen, return_token_ids=True, max_tokens=9
    )

    for allowed in ([130], free.token_ids[:1]):
        with pytest.raises(errors.InvalidRequest, match="no token of allowed_token_ids continues"):
            await answer(
                server,
                model,
                QUESTION,
                structured_outputs=chosen,
                allowed_token_ids=allowed,
                stream=stream,
                max_tokens=9,
            )
