"""Answers of the demo model to requests with constraints."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.generation import CompletionDelta
from openai_frontend.parsing.events import Event
from openai_frontend.parsing.family import Family
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.request.sampling import Constraint
from openai_frontend.serving.request.tools import NO_TOOLS, Tools
from openai_frontend.triton import Server
from schemas.chat_completions import ChatCompletionRequest
from tests.fast.parsing.samples import complete
from tests.vllm.requests import answer

QUESTION = "<|im_start|>user\nWhat is Triton?<|im_end|>\n<|im_start|>assistant\n"
AT_ONCE = 64

PERSON: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 20}},
            "required": ["street"],
            "additionalProperties": False,
        }
    },
}


def held(
    family: str | Family,
    tools: Tools = NO_TOOLS,
    *,
    reasoning_open: bool | None = None,
    **fields: Any,
) -> Constraint:
    messages = [{"role": "user", "content": "hi"}]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **fields})
    reading = OutputFormat(family=family if isinstance(family, Family) else BY_NAME[family])
    return constraint(request, tools, reading, reasoning_open=reasoning_open)


def offered(functions: Mapping[str, Any], choice: Any = "required", **changed: Any) -> Tools:
    given = {
        "functions": functions,
        "choice": choice,
        "allowed": frozenset(functions),
        "strict": frozenset(functions),
        "places": {name: f"tools[{i}].function.parameters" for i, name in enumerate(functions)},
    }
    return Tools(**{**given, **changed})


LOGIT_BIAS = {
    # The first byte of a UTF-8 surrogate, which xgrammar counts as a character although UTF-8 has
    # none: the text would exceed its length. Models trained on UTF-8 never write it.
    172: -100.0,
    # What ends strings, arrays, objects and sentences: the longest of the answers takes the time.
    **dict.fromkeys((4, 63, 95, 16), 2.0),
}


async def answers(
    server: Server, constraints: Sequence[Constraint], *, refusable: bool = False, **options: Any
) -> list[Any]:
    """Return all answers, many at once. If `refusable`, a refused request returns its error
    instead.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int, given: Constraint) -> CompletionDelta:
        async with room:
            fixed = {"temperature": 1.5, "seed": seed, "max_tokens": 400, "logit_bias": LOGIT_BIAS}
            sampling = {**fixed, **options}
            return await answer(
                server, "demo", QUESTION, structured_outputs=given.structured, **sampling
            )

    asked = (one(seed, given) for seed, given in enumerate(constraints))
    return await asyncio.gather(*asked, return_exceptions=refusable)


def read(family: str, tools: Tools, given: Constraint, text: str) -> list[Event]:
    parser = OutputFormat(family=BY_NAME[family]).parser(
        tools.functions, prompt=QUESTION, forced=given.forced, any_call=given.any_call
    )
    return complete(parser, text)
