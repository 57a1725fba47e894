"""Deltas of output, cut at the ends of sentences."""

import random
import time

import pytest

from openai_frontend.generation import CompletionDelta, TokenCounts
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.output.output_parsing import ParsedDelta
from openai_frontend.serving.output.sentences import (
    MAX_PIECE,
    SentenceBuffer,
    pieces,
    visible_text,
)
from tests.cpu_time import budget

# ruff: noqa: RUF001  sentences of other languages
TEXT = 'One. Two is "3.5." Really?! Yes\nNo… end。次！ last'
SENTENCES = ["One. ", 'Two is "3.5." ', "Really?! ", "Yes\n", "No… ", "end。", "次！", " last"]


def deltas(parts: list[str]) -> list[CompletionDelta]:
    last = CompletionDelta(finish_reason="stop", counts=TokenCounts(1, 1, 0))
    return [*(CompletionDelta(each, [1]) for each in parts), last]


def test_texts_are_sentences_of_limited_length():
    text = "One sentence. " * 40
    found = pieces(text)
    assert "".join(found) == text
    assert all(each.endswith(". ") and len(each) >= 200 for each in found[:-1])
    assert len(found) == 3
    assert pieces(TEXT) == [TEXT]
    assert pieces("a" * (2 * MAX_PIECE + 1)) == ["a" * MAX_PIECE, "a" * MAX_PIECE, "a"]
    assert pieces(" \n ") == pieces("") == []


@pytest.mark.parametrize("seed", range(50))
def test_sentences_do_not_depend_on_how_the_text_arrives(seed):
    """However it is cut into deltas and bursts; nothing is lost or added."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(TEXT) + 1), rng.randint(0, len(TEXT))))
    parts = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    buffer, found = SentenceBuffer(), []
    for delta in deltas(parts):
        found += buffer.feed([delta])

    assert [each.text for each in found] == SENTENCES
    passed = [delta for sentence in found for delta in sentence.deltas]
    assert "".join(map(visible_text, passed)) == TEXT
    assert sum(len(each.token_ids) for each in passed) == len(parts)
    assert [each.finish_reason for each in passed if each.finish_reason] == ["stop"]
    assert passed[-1].counts is not None


@pytest.mark.parametrize("text", [".", "a", "\n", '."', ". ", "。"])
def test_time_is_linear_in_the_text(text):
    """A prompt of dots took 48 s of the event loop for 20,000 characters."""

    def cpu_s(length: int) -> float:
        began_s = time.process_time()
        pieces(text * length)
        buffer = SentenceBuffer()
        buffer.feed([CompletionDelta(text * length)])
        return time.process_time() - began_s

    assert cpu_s(100_000) < budget(2.0)


def test_withheld_text_does_not_end_a_sentence():
    """A parser withholds what may be a marker: its deltas have no event then."""
    buffer = SentenceBuffer()
    parts = ["You ", "are ", None, "an ", None, "idiot."]
    deltas = [
        ParsedDelta("raw", events=[] if each is None else [ReasoningText(each)]) for each in parts
    ]

    assert [sentence for delta in deltas for sentence in buffer.feed([delta])] == []
    [sentence] = buffer.feed([ParsedDelta("", finish_reason="stop")])
    assert sentence.text == "You are an idiot."


def test_sentence_is_held_until_its_end():
    buffer = SentenceBuffer()

    assert buffer.feed([CompletionDelta("One")]) == []
    assert buffer.feed([CompletionDelta(".")]) == []  # it may be a number
    [sentence] = buffer.feed([CompletionDelta(" Two")])
    assert sentence.text == "One. "


def test_every_text_that_a_client_can_see_counts():
    """Reasoning, content and the arguments of calls are in sentences of their own."""
    events: list[Event] = [
        ReasoningText("think"),
        ContentText("say"),
        ToolCallStart(0, "c0", "f"),
        ToolCallArguments(0, '{"a":'),
        ToolCallArguments(0, "1}"),
        ToolCallEnd(0),
        ToolCallStart(1, "c1", "f"),
        ToolCallArguments(1, "{}"),
        ToolCallEnd(1),
    ]
    burst = [ParsedDelta("raw", [1, 2], "stop", events=events, called=True)]

    found = SentenceBuffer().feed(burst)

    assert [each.text for each in found if each.text] == ["think", "say", '{"a":1}', "{}"]
    passed = [delta for sentence in found for delta in sentence.deltas]
    assert [event for delta in passed for event in delta.events] == events  # type: ignore[attr-defined]
    assert [each.finish_reason for each in passed] == [None] * (len(passed) - 1) + ["stop"]
    assert passed[-1].called is True  # type: ignore[attr-defined]


def test_long_sentence_is_bounded():
    buffer = SentenceBuffer()
    held = 0
    for _ in range(3 * MAX_PIECE):
        held += 1
        for sentence in buffer.feed([CompletionDelta("a")]):
            assert len(sentence.text) == held == MAX_PIECE
            held = 0
