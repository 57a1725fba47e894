"""Whatever a model writes, the parser neither raises nor loses any of it."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.formats.python_calls import PYTHONIC
from openai_frontend.parsing.registry import FAMILIES
from tests.examples import scaled
from tests.fast.parsing.samples import Answer, parser_for, replay

pytestmark = pytest.mark.slow

WORDS = ["get_weather", "now", "city", "Paris", "functions.now:0", "to=functions.now", "analysis"]
JSON_PIECES = [
    '{"name": "now", "arguments": ',
    '{"city": "',
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "{}",
]
PYTHON_PIECES = ["[", "now(", "city=", "'", "(", ")", "\\", "\\u12", "1.", "True", "None"]
TEXT_PIECES = [" ", "\n", "```", "<", "｜", "🙂", "é", "\u2028", "\x00", "text"]  # noqa: RUF001
PIECES = WORDS + JSON_PIECES + PYTHON_PIECES + TEXT_PIECES

families = st.sampled_from(FAMILIES)


def markers_of(family: Family) -> list[str]:
    """Every marker that the family's rows name, and beginnings of them."""
    syntax, reasoning = family.tools, family.reasoning
    section = getattr(syntax, "section", None)
    found = [*family.endings]
    found += [*syntax.starts, *getattr(syntax, "ends", ())] if syntax else []
    found += (
        [*section.call_ends, *section.ends, *getattr(syntax, "name_ends", ())] if section else []
    )
    found += [getattr(syntax, "key_start", ""), *getattr(syntax, "key_ends", ())]
    found += [getattr(syntax, "value_start", ""), *getattr(syntax, "value_ends", ())]
    found += [reasoning.start, reasoning.end] if reasoning else []
    found += ["<|message|>", "<|end|>", "<|call|>"] if family.name == "gpt_oss" else []
    whole = [marker for marker in found if marker]
    return whole + [marker[:-1] for marker in whole]


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Family, list[str]]:
    """A family and pieces of text that look like its syntax."""
    family = draw(families)
    pieces = st.sampled_from(PIECES + 3 * markers_of(family)) | st.text(max_size=3)
    return family, draw(st.lists(pieces, max_size=30))


def parsed(family: Family, *pieces: str) -> Answer:
    return replay(parser_for(family.name, {}), pieces)


@settings(max_examples=scaled(1000), deadline=None)
@given(outputs())
@example((FAMILIES[0], ["<|channel|>commentary to=functions.now<|message|>[1]"]))
@example((PYTHONIC, ["```tool_code\n", "```tool_code\n"]))
def test_any_text_parses_the_same_in_any_pieces(output: tuple[Family, list[str]]) -> None:
    """No text makes a parser raise, and splitting it makes no difference. Every call has a name and
    an id, and a complete one's arguments are a JSON object. All characters of content and of
    reasoning occur in the output, in the same order. Without a call, they are the text, but for
    markers and the white space that touches them.
    """

    family, pieces = output
    text = "".join(pieces)
    answer = parsed(family, text)

    assert answer == parsed(family, *pieces) == parsed(family, *text)
    for call in answer.calls:
        assert call.name
        assert call.id
        assert not call.complete or isinstance(json.loads(call.arguments), dict)
    for part in (answer.content, answer.reasoning):
        characters = iter(text)
        assert all(character in characters for character in part)
    if not answer.calls and family.name != "gpt_oss":
        assert _is_left_of(_squeezed(text), _squeezed(answer.text), _text_markers(family))


@settings(max_examples=scaled(300), deadline=None)
@given(outputs(), st.sampled_from([{"any_call": True}, {"forced": "now"}]))
def test_constrained_output_parses_the_same_in_any_pieces(
    output: tuple[Family, list[str]], held: dict[str, Any]
) -> None:
    """Also if the request allows only calls; a complete call is valid."""

    family, pieces = output
    text = "".join(pieces)
    whole = replay(parser_for(family.name, held), [text])

    assert whole == replay(parser_for(family.name, held), pieces)
    assert whole == replay(parser_for(family.name, held), text)
    for call in whole.calls:
        assert not call.complete or isinstance(json.loads(call.arguments), dict)


@settings(max_examples=scaled(300), deadline=None)
@given(st.sampled_from(FAMILIES), st.text())
def test_plain_text_is_unchanged(family: Family, text: str) -> None:
    """Text that cannot contain a marker is passed on unchanged."""

    plain = "a" + "".join(char for char in text if char.isalnum() or char == " ")
    answer = replay(parser_for(family.name, {"reasoning_open": False}), plain)

    assert (plain, "", []) == (answer.content, answer.reasoning, answer.calls)


def _text_markers(family: Family) -> list[str]:
    known = family.reasoning
    reasoning = [known.start, known.end, *known.other_ends] if known else []
    return [_squeezed(marker) for marker in (*family.endings, *reasoning, *_without_calls(family))]


def _without_calls(family: Family) -> list[str]:
    """Sections and lists that have no calls, which are not shown."""
    section = getattr(family.tools, "section", None)
    if section:
        return [start + end for start in section.starts for end in section.ends]
    starts, ends = getattr(family.tools, "starts", ()), getattr(family.tools, "ends", ())
    empty = [f"{start}{end}" for start in starts for end in ends]
    return empty + [f"{start}[]{end}" for start in starts for end in ("", *ends)]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _is_left_of(text: str, left: str, markers: list[str]) -> bool:
    """Whether removing some of the markers from the text leaves this."""
    reached = {0}  # how much of `left` may be matched so far
    at_position: dict[int, set[int]] = {0: reached}
    for at, character in enumerate(text):
        for matched in at_position.pop(at, set()):
            if left[matched : matched + 1] == character:
                at_position.setdefault(at + 1, set()).add(matched + 1)
            for marker in markers:
                if text.startswith(marker, at):
                    at_position.setdefault(at + len(marker), set()).add(matched)
    return len(left) in at_position.get(len(text), set())
