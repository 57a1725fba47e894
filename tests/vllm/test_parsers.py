"""vLLM's own output parsers behind the gateway's interface; no engine runs."""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from openai_frontend.engines.vllm import parsers
from openai_frontend.engines.vllm.parsers import Pieces
from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.parser_selection import ModelFiles, select_parser
from openai_frontend.parsing.buffer import Markers
from openai_frontend.parsing.output_format import OutputFormat
from tests.fast.parsing.samples import FILES, FOLDER, TOOLS, Answer, answer, outputs
from tests.fast.prompting import tiny_tokenizer
from tests.vllm.conftest import locked_vllm

pytestmark = pytest.mark.engine

MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"]
OPEN, CLOSED = "<|im_start|>assistant\n<think>\n", "<think>\n\n</think>\n\n"
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "CET"}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that has the parsers' tokens."""
    return with_tokens(tmp_path_factory.mktemp("tokenizer"), MARKS)


def with_tokens(folder: Path, marks: Sequence[str]) -> Path:
    written = tiny_tokenizer.write(folder)
    tokenizer = Tokenizer.from_file(str(written / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.save(str(written / "tokenizer.json"))
    (written / "config.json").write_text('{"model_type": "gpt2"}')  # vLLM reads it twice otherwise
    return written


@functools.cache
def reading(folder: Path, tools: str | None = None, reasoning: str | None = None) -> OutputFormat:
    named = {"tool_call_parser": tools, "reasoning_parser": reasoning}
    files = ModelFiles(folder=folder, chat_template=None)
    return select_parser(
        files, {name: f"vllm:{parser}" for name, parser in named.items() if parser}
    )


def read(
    found: OutputFormat, pieces: Iterable[str], *, tools: Any = TOOLS, prompt: str | None = None
) -> Answer:
    parser = found.parser(tools, prompt=prompt)
    return answer([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


def said(found: Answer) -> tuple[str, str, list[tuple[str, str, bool | None]]]:
    calls = [(call.name, call.arguments, call.complete) for call in found.calls]
    return found.reasoning, found.content, calls


@pytest.mark.parametrize(
    ("variables", "reasoning", "content"),
    [({}, "It rains.", ""), ({"enable_thinking": False}, "", "It rains.")],
)
def test_parsers_get_the_chat_template_arguments(folder, variables, reasoning, content) -> None:
    """vLLM's parsers know whether the request disabled thinking."""
    parser = reading(folder, reasoning="qwen3").parser({}, prompt=None, variables=variables)

    found = answer(parser.feed("It rains.") + parser.finish())

    assert (found.reasoning, found.content) == (reasoning, content)


WELL_FORMED = (
    "text_only", "one_call", "several_calls", "nested_and_unicode", "code_in_a_string",
    "empty_arguments", "text_before", "truncated_in_a_string",
)  # fmt: skip
HERMES = {output["name"]: output for output in outputs(FOLDER / "hermes.json")}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_hermes_equals_the_gateways_parser(folder: Path, name: str) -> None:
    """The two return the same for the well-formed sample outputs."""
    output = HERMES[name]

    found = read(reading(folder, "hermes"), [output["text"]])

    assert found.content.strip() == output["content"]
    assert [call.name for call in found.calls] == [call["name"] for call in output["calls"]]
    for expected, call in zip(output["calls"], found.calls, strict=True):
        assert call.complete is expected.get("complete", True)
        if call.complete:
            assert json.loads(call.arguments) == expected["arguments"]


@pytest.mark.parametrize("output", HERMES.values(), ids=HERMES)
def test_result_is_independent_of_pieces(folder: Path, output: dict[str, Any]) -> None:
    """vLLM's parsers on their own return different results for different pieces of a text."""
    found, text = reading(folder, "hermes", "qwen3"), output["text"]
    whole = said(read(found, [text]))

    for size in (1, 2, 3, 7, 20):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert said(read(found, pieces)) == whole


def test_mistral_syntax(folder: Path) -> None:
    text = '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}}]'

    assert said(read(reading(folder, "mistral"), [text]))[2] == [("now", '{"a": 1}', True)]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        (OPEN, "Hm.\n</think>\n\nHello.", ("Hm.", "Hello.")),
        (CLOSED, "Hello.", ("", "Hello.")),
        (OPEN, "Hm", ("Hm", "")),
        (OPEN, "</think>", ("", "")),
    ],
)
def test_prompt_decides_whether_reasoning_is_open(
    folder: Path, prompt: str, text: str, expected: tuple[str, str]
) -> None:
    """Its last tokens show it."""
    found = read(reading(folder, reasoning="qwen3"), [text], prompt=prompt)

    assert (found.reasoning.strip(), found.content.strip()) == expected


def test_whether_reasoning_is_open_is_known(folder: Path) -> None:
    """It is known before the answer starts and while it arrives."""
    found = reading(folder, reasoning="qwen3")
    parser = found.parser({}, prompt=OPEN)

    assert (found.reasoning_open(OPEN), found.reasoning_open(CLOSED)) == (True, False)
    assert parser.in_reasoning
    parser.feed("Hm.</think>Hello there, you")
    assert not parser.in_reasoning


def test_tool_and_reasoning_parser_are_combined(folder: Path) -> None:
    """vLLM itself makes one parser of the two."""
    found = reading(folder, "hermes", "deepseek_r1")

    reasoning, _content, calls = said(read(found, [f"Hm.</think>\n{CALL}"], prompt=OPEN))

    assert (reasoning, calls) == ("Hm.", [("now", '{"zone": "CET"}', True)])
    assert found.name == "vllm:hermes+vllm:deepseek_r1"


def test_vllm_tool_parser_after_the_gateways_reasoning(folder: Path) -> None:
    """vLLM's tool parser gets the text after the reasoning of the gateway's model family."""
    files = ModelFiles(folder=folder, chat_template=None)
    found = select_parser(files, {"tool_call_parser": "vllm:hermes", "reasoning_parser": "qwen3"})

    reasoning, content, calls = said(read(found, [f"<think>Hm.</think>Now. {CALL}"]))

    assert (reasoning, content.strip()) == ("Hm.", "Now.")
    assert calls == [("now", '{"zone": "CET"}', True)]


def test_forced_function_uses_the_gateways_parser(folder: Path) -> None:
    """The request constrains the answer to a syntax that only the gateway's parser reads."""
    parser = reading(folder, "hermes", "qwen3").parser(TOOLS, prompt=OPEN, forced="now")

    found = answer(parser.feed('Hm.</think>{"zone": 1}') + parser.finish())

    assert said(found) == ("Hm.", "", [("now", '{"zone": 1}', True)])


def test_without_tools_a_call_is_content(folder: Path) -> None:
    assert said(read(reading(folder, "hermes"), [CALL], tools={})) == ("", CALL, [])


def test_special_tokens_are_kept_if_the_parser_needs_them(folder: Path) -> None:
    assert reading(folder, "hermes").special_tokens
    assert not reading(folder, "pythonic").special_tokens


def test_whole_answer_of_a_silent_parser_is_content(folder: Path) -> None:
    """If vLLM's parser returns nothing for a whole answer, the answer becomes content."""
    text = "Hello there."

    assert read(reading(folder, "phi4_mini_json"), text).content == text


def test_failing_parser_leaves_the_answer_as_content(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the failure."""
    text = '<|action_start|><|plugin|>{"name": "now", "parameters": {}}<|action_end|>' * 3

    found = read(reading(folder, "internlm"), text + " Bye.")

    assert found.content.endswith(" Bye.")
    assert "parser vllm:internlm failed" in caplog.text


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("hermess", "vLLM has no parser 'hermess'; did you mean .*hermes"),
        pytest.param("llama3_json", "cannot be used with the tokenizer", marks=locked_vllm),
    ],
)
def test_unavailable_parser_is_refused(folder: Path, tools: str, message: str) -> None:
    """The error for a wrong name suggests similar ones; an unsuitable tokenizer has its
    own error.
    """
    with pytest.raises(ModelUnavailable, match=f"its tool_call_parser vllm:{tools}: .*{message}"):
        reading(folder, tools)


@pytest.fixture(scope="module")
def well_known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that has the markers of every family's sample outputs."""
    texts = [output["text"] for path in FILES for output in outputs(path)]
    marks = {mark for text in texts for mark in MARKERS.findall(text)}
    return with_tokens(tmp_path_factory.mktemp("tokenizer"), sorted(marks))


MARKERS = re.compile(r"<\|[^<>|]+\|>|<｜[^<>]+?｜>|</?[a-z_:]+>|\[[A-Z_]{3,}\]")  # noqa: RUF001
# Parsers that need another package or other tokens
NEEDY = {
    "tool_call_parser": {"cohere_command3", "cohere_command4", "hf"},
    "reasoning_parser": {
        "cohere_command3", "cohere_command4", "hf", "k2_horizon", "olmo3", "poolside_v1",
    },
}  # fmt: skip


@locked_vllm
@pytest.mark.parametrize("setting", NEEDY)
def test_every_vllm_parser_loads_and_keeps_text(well_known: Path, setting: str) -> None:
    """Each loads with a suitable tokenizer, and no text of the answer is lost."""
    needy, lost = set(), set()
    for name in parsers.names(setting):
        files = ModelFiles(folder=well_known, chat_template=None)
        try:
            found = select_parser(files, {setting: f"vllm:{name}"})
        except ModelUnavailable:
            needy.add(name)
            continue
        said = read(found, ["Hello ", "there", "."], prompt="Hi.")
        if "Hello there." not in said.text:
            lost.add(name)

    assert (needy, lost) == (NEEDY[setting], set())


TEXTS = st.lists(st.sampled_from(["<think>", "<thi", "a", "word ", "é", " ", "9" * 20, "</x>"]))


@given(TEXTS, st.data())
def test_pieces_join_to_the_text(parts: list[str], data: st.DataObject) -> None:
    """They do not depend on how the text arrives, and special tokens stay whole."""
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))

    whole, cut = Pieces(Markers("<think>", "<t")), Pieces(Markers("<think>", "<t"))
    expected = [*whole.feed(text), *whole.finish()]
    came = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = [piece for part in came for piece in cut.feed(part)]

    assert [*found, *cut.finish()] == expected
    assert "".join(expected) == text
    assert expected.count("<think>") == text.count("<think>")
