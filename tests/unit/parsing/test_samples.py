"""Every sample output means what stands beside it, however it is cut into pieces."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.parsing.registry import FAMILIES
from tests.unit.parsing.samples import FILES, HELD, Answer, outputs, parser_for, replay

ALL = [(path.stem, output) for path in FILES + HELD for output in outputs(path)]
every_output = pytest.mark.parametrize(
    ("family", "output"), ALL, ids=[f"{family}-{output['name']}" for family, output in ALL]
)
every_family = pytest.mark.parametrize(
    "path", FILES + HELD, ids=[path.stem for path in FILES + HELD]
)
_TOKEN = re.compile(r"\s?\w{1,4}|\s|\W{1,2}")


def parsed(family: str, output: dict[str, Any], *pieces: str) -> Answer:
    return replay(parser_for(family, output), pieces or [output["text"]])


@every_output
def test_text(family: str, output: dict[str, Any]) -> None:
    """Content and reasoning match the sample to the character."""

    answer = parsed(family, output)

    assert (output["content"], output["reasoning"]) == (answer.content, answer.reasoning)


@every_output
def test_calls(family: str, output: dict[str, Any]) -> None:
    """Calls have the sample's names and arguments; those of a complete call are valid JSON."""

    calls = parsed(family, output).calls

    assert [call["name"] for call in output["calls"]] == [call.name for call in calls]
    for expected, call in zip(output["calls"], calls, strict=True):
        assert expected.get("complete", True) == call.complete
        assert expected.get("id", call.id) == call.id
        if call.complete:
            assert expected["arguments"] == json.loads(call.arguments)


@every_output
def test_truncated_call(family: str, output: dict[str, Any]) -> None:
    """The arguments of a truncated call are the beginning of the complete JSON."""

    calls = parsed(family, output).calls

    for expected, call in zip(output["calls"], calls, strict=True):
        if not call.complete:
            begun = json.dumps(expected["arguments_begin"]).removesuffix('"}')
            text = expected.get("arguments_text", begun)
            assert text.replace(" ", "") == call.arguments.replace(" ", "")


@every_output
def test_character_by_character(family: str, output: dict[str, Any]) -> None:
    """One character at a time gives the same events."""

    assert parsed(family, output) == parsed(family, output, *output["text"])


@every_output
def test_at_token_boundaries(family: str, output: dict[str, Any]) -> None:
    """Pieces as long as tokens give the same events."""

    assert parsed(family, output) == parsed(family, output, *_TOKEN.findall(output["text"]))


@every_family
def test_every_split_into_two(path: Path) -> None:
    """Every split into two pieces gives the same events."""

    for output in outputs(path):
        text, whole = output["text"], parsed(path.stem, output)
        for at in range(1, len(text)):
            assert whole == parsed(path.stem, output, text[:at], text[at:]), (output["name"], at)


@every_family
def test_truncated_at_every_point(path: Path) -> None:
    """An output that ends too early gives a beginning of what the whole would have given, and the
    markers that it had begun as text.
    """

    for output in outputs(path):
        whole = parsed(path.stem, output)
        for at in range(len(output["text"])):
            cut = parsed(path.stem, output, output["text"][:at])
            assert_begins(whole, cut, output["text"][:at])


def assert_begins(whole: Answer, cut: Answer, text: str) -> None:
    assert len(cut.calls) <= len(whole.calls)
    for call, short in zip(whole.calls, cut.calls, strict=False):
        assert call.name == short.name
        assert call.arguments.startswith(short.arguments)
        assert call.complete or not short.complete
    for one, beginning in ((whole.content, cut.content), (whole.reasoning, cut.reasoning)):
        same = len(_common(one, beginning))
        assert beginning[same:].strip() in text


def _common(one: str, other: str) -> str:
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: same if same is not None else min(len(one), len(other))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_pieces(data: st.DataObject) -> None:
    """Any split gives the same events; empty pieces give none."""

    family, output = data.draw(st.sampled_from(ALL))
    text = output["text"]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert parsed(family, output) == parsed(family, output, *pieces)


def test_every_family_has_samples() -> None:
    """Each family has its own file of samples."""

    assert {family.name for family in FAMILIES} == {path.stem for path in FILES}
