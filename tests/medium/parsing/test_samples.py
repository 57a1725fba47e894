"""Every sample output means what stands beside it, however it is cut into pieces."""

import json
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.parsing.registry import FAMILIES
from tests.fast.parsing.samples import FILES, HELD, Answer, outputs, parser_for, replay

every_family = pytest.mark.parametrize(
    "path", FILES + HELD, ids=[path.stem for path in FILES + HELD]
)


def parsed(family: str, output: dict[str, Any], *pieces: str, truncated: bool = False) -> Answer:
    parser = parser_for(family, output)
    return replay(parser, pieces or [output["text"]], truncated=truncated)


@every_family
def test_meaning(path: Path) -> None:
    """Content and reasoning match the samples to the character. Calls have the sample's names and
    arguments; those of a truncated call are the beginning of the complete JSON.
    """

    for output in outputs(path):
        name, answer = output["name"], parsed(path.stem, output)
        assert (output["content"], output["reasoning"]) == (answer.content, answer.reasoning), name
        assert [call["name"] for call in output["calls"]] == [call.name for call in answer.calls]
        for expected, call in zip(output["calls"], answer.calls, strict=True):
            assert expected.get("complete", True) == call.complete, name
            assert expected.get("id", call.id) == call.id, name
            if call.complete:
                assert expected["arguments"] == json.loads(call.arguments), name
            else:
                begun = json.dumps(expected["arguments_begin"]).removesuffix('"}')
                text = expected.get("arguments_text", begun)
                assert text.replace(" ", "") == call.arguments.replace(" ", ""), name


@every_family
def test_character_by_character(path: Path) -> None:
    """One character at a time gives the same events."""

    for output in outputs(path):
        whole = parsed(path.stem, output)
        assert whole == parsed(path.stem, output, *output["text"]), output["name"]


@pytest.mark.slow
@every_family
def test_every_split_into_two(path: Path) -> None:
    """Every split into two pieces gives the same events."""

    for output in outputs(path):
        text, whole = output["text"], parsed(path.stem, output)
        for at in range(1, len(text)):
            assert whole == parsed(path.stem, output, text[:at], text[at:]), (output["name"], at)


@pytest.mark.slow
@every_family
def test_truncated_at_every_point(path: Path) -> None:
    """An output that ends too early gives a beginning of what the whole would have given, and the
    markers that it had begun as text.
    """

    for output in outputs(path):
        whole = parsed(path.stem, output)
        for at in range(len(output["text"])):
            cut = parsed(path.stem, output, output["text"][:at], truncated=True)
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


def test_every_family_has_samples() -> None:
    """Each family has its own file of samples."""

    assert {family.name for family in FAMILIES} == {path.stem for path in FILES}
