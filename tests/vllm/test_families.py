"""Families return what vLLM's own parsers return for complete outputs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.engines.vllm import parsers
from openai_frontend.engines.vllm.processes import environment
from openai_frontend.parsing.registry import BY_NAME
from tests.fast.parsing.samples import FOLDER, TOOLS, outputs, parser_for, replay
from tests.vllm.conftest import locked_vllm
from tests.vllm.test_parsers import MARKERS, with_tokens

pytestmark = [pytest.mark.engine, locked_vllm]

# vLLM's parser of calls -> its parser of reasoning
PARSERS: Mapping[str, str | None] = {
    "muse_glimmer": "muse_glimmer",
    "kimi_k3": "kimi_k3",
    "hy_v3": "hy_v3",
    "hy_v4": "hy_v4",
    "step3p5": "step3p5",
    "mimo": "mimo",
    "ling3": "ling3",
    "minimax_m3": "minimax_m3",
    "apertus": None,
    "gigachat3": None,
    "ernie45": "ernie45",
}
# vLLM returns these otherwise: it drops truncated calls or shows them as content, and does not
# parse a call without its section or without the end of the reasoning before it
LENIENT = {
    "truncated_in_a_string", "truncated_in_reasoning", "truncated_in_the_name",
    "truncated_in_the_header", "truncated_in_an_element", "reasoning_ended_by_a_call",
    "call_without_a_section",
}  # fmt: skip
# ... and, in one family: reasoning that is joined by a line break, headers of messages, tags around
# a response without reasoning or before calls, text after a call, the JSON variant, a second call,
# and a value whose schema is a reference or missing, which is text there
OTHERWISE: Mapping[str, set[str]] = {
    "muse_glimmer": {
        "reasoning_opened_by_the_prompt", "reasoning_twice", "call_in_a_message_to_the_user",
        "bare_message",
    },
    "kimi_k3": {"reasoning_without_its_end"},
    "hy_v3": {"nested_and_unicode"},
    "hy_v4": {"nested_and_unicode"},
    "step3p5": {"nested_and_unicode", "text_before_and_after"},
    "mimo": {"nested_and_unicode"},
    "ling3": {"nested_and_unicode", "text_before_and_after", "json_form", "malformed"},
    "minimax_m3": {
        "nested_and_unicode", "items_without_a_schema", "repeated_elements", "text_beside_elements",
        "element_within_one_of_its_name",
    },
    "apertus": {"null_arguments", "list_of_text"},
    "ernie45": {"text_only", "text_before", "reasoning_text_and_calls"},
    "gigachat3": {"several_calls", "text_before", "newer_form_several_calls"},
}  # fmt: skip
CASES = [
    pytest.param(name, output, id=f"{name}-{output['name']}")
    for name in PARSERS
    for output in outputs(FOLDER / f"{BY_NAME[name].name}.json")
    if output["name"] not in LENIENT | OTHERWISE.get(name, set())
    if not output["reasoning"] or PARSERS[name]
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tokenizers that have each family's markers."""
    with environment.restored():
        from vllm.tokenizers import get_tokenizer
    made = {}
    for name in PARSERS:
        texts = [output["text"] for output in outputs(FOLDER / f"{BY_NAME[name].name}.json")]
        marks = sorted({mark for text in texts for mark in MARKERS.findall(text)})
        folder: Path = with_tokens(tmp_path_factory.mktemp(name), marks)
        made[name] = get_tokenizer(str(folder))
    return made


@pytest.mark.parametrize(("name", "output"), CASES)
def test_complete_output_is_parsed_as_by_vllm(tokenizers, name, output) -> None:
    """White space around reasoning and content may differ."""
    mine = replay(parser_for(name, output), [output["text"]])
    calls = [(call.name, json.loads(call.arguments)) for call in mine.calls]

    expected = by_vllm(tokenizers[name], name, output)

    if name == "gigachat3" and calls:  # vLLM shows the call as content too
        expected = ("", mine.content.strip(), expected[-1])
    assert (mine.reasoning.strip(), mine.content.strip(), calls) == expected


CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
LIST = f'[{{"name": "now", "arguments": {{}}}}, {CALL}]'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("xlam", LIST),
        ("xlam", f"```json\n{LIST}\n```"),
        ("xlam", f"```\n{LIST}\n```"),
        ("xlam", f"Text ```json\n{LIST}\n```"),
        ("xlam", f"<tool_call>{LIST}</tool_call>"),
        ("xlam", "Text only."),
        (
            "granite4",
            f"Text.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
        ),
        ("granite4", "Text only."),
    ],
)
def test_family_with_an_alias_parses_as_vllm(tokenizers, name, text) -> None:
    """These names belong to families that other models have too."""
    output = {"name": "", "text": text, "reasoning": ""}
    mine = replay(parser_for(name, output), [text])
    calls = [(call.name, json.loads(call.arguments)) for call in mine.calls]

    assert ("", mine.content.strip(), calls) == by_vllm(tokenizers["ernie45"], name, output)


def by_vllm(
    tokenizer: Any, name: str, output: Mapping[str, Any]
) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, content and calls. Thinking is switched on if the output has reasoning."""
    thinks = bool(output["reasoning"]) or output["name"] == "empty_reasoning"
    effort = "high" if thinks else "no_think"
    variables = {
        "enable_thinking": thinks,
        "thinking": thinks,
        "thinking_mode": "enabled" if thinks else "disabled",
        "reasoning_effort": effort,
    }
    reasoner = PARSERS.get(name) if thinks or name == "muse_glimmer" else None
    parser_class = parsers._parser_class(tokenizer, name, reasoner)
    request = parsers._request(TOOLS, variables)
    parser = parser_class(tokenizer, request.tools, chat_template_kwargs=variables)
    text = (
        output["text"].removesuffix("</s>").removesuffix("<|assistant_end|>").removesuffix("[e~[")
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    reasoning, content, calls = parser.parse(
        text, request, enable_auto_tools=True, model_output_token_ids=ids
    )
    found = [(call.name, json.loads(call.arguments)) for call in calls or ()]
    return (reasoning or "").strip(), (content or "").strip(), found
