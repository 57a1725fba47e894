"""Output fields that a model does not report are derived from those it reports."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from openai_frontend.contracts import Contract
from openai_frontend.contracts.derived_outputs import DERIVED, UNKNOWN_TOKEN, DerivedOutputs
from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from tests.fast.contracts.recorded import Letters, RecordedOutputs


@dataclass
class Told:
    """A contract that decodes prepared deltas."""

    derives: frozenset[str]
    extra_args: frozenset[str] | None = None
    max_images: int | None = 0
    supported: set[str] = field(default_factory=set)

    def supports(self, field: str) -> bool:
        return field in self.supported

    def encode(self, request: GenerationRequest) -> dict[str, Any]:
        return {}

    def decoder(self, request: GenerationRequest) -> Any:
        return lambda outputs: outputs.item("delta") or CompletionDelta()

    def text_output(self, request: GenerationRequest) -> str | None:
        return "text_output"


def answers(
    derives: set[str],
    deltas: list[CompletionDelta],
    *,
    prompt: str = "Hi",
    empty_end: bool = False,
    **params: Any,
) -> list[CompletionDelta]:
    """Return the deltas of one answer. If `empty_end`, the last response is empty."""
    request = GenerationRequest(
        request_id="r",
        prompt=prompt,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(**params),
    )
    contract: Contract = Told(frozenset(derives), supported={"max_tokens"})
    read = DerivedOutputs(contract, Letters()).decoder(request)
    last = len(deltas) - (not empty_end)
    outputs = [RecordedOutputs(final=at == last, delta=each) for at, each in enumerate(deltas)]
    end = [RecordedOutputs(final=True)] if empty_end else []
    return [read(each) for each in [*outputs, *end]]


def text(deltas: list[CompletionDelta]) -> list[str]:
    return [delta.text for delta in deltas]


@pytest.mark.parametrize(
    ("params", "pieces", "expected"),
    [
        ({}, ["a", "b"], ("stop", None)),
        ({"max_tokens": 2}, ["a", "b"], ("length", None)),
        ({"max_tokens": 3}, ["a", "b"], ("stop", None)),
        ({"max_tokens": 2, "stop": ["b"]}, ["a", "b"], ("stop", "b")),
    ],
)
@pytest.mark.parametrize("empty_end", [False, True])
def test_finish_reason_from_counts(
    params: dict[str, Any], pieces: list[str], expected: tuple[str, str | None], empty_end: bool
) -> None:
    """`length` at the token limit, `stop` at a stop string."""

    told = [CompletionDelta(piece, counts=TokenCounts(0, 1)) for piece in pieces]
    derives = {"finish_reason", "stop", "prompt_tokens"}
    deltas = answers(derives, told, empty_end=empty_end, **params)
    ends = [each for each in deltas if each.finish_reason is not None]
    assert [(each.finish_reason, each.stop_reason) for each in ends] == [expected]
    counts = [each.counts for each in deltas if each.counts is not None]
    assert counts == [TokenCounts(3, 1), TokenCounts(3, 1)]


def test_reported_finish_reason_is_kept() -> None:
    """Only what is not reported is derived."""

    told = [CompletionDelta("ab", finish_reason="length")]
    (delta,) = answers({"completion_tokens", "prompt_tokens"}, told)
    assert (delta.finish_reason, delta.counts) == ("length", TokenCounts(3, 2))


def test_nothing_follows_a_stop_string() -> None:
    """The delta with the stop string ends the answer, even if the model continues."""

    told = [CompletionDelta(piece) for piece in ("one E", "ND two", " three")]
    deltas = answers({"stop", "finish_reason", "completion_tokens"}, told, stop=["END"])
    assert text(deltas) == ["one ", "", ""]
    assert [each.finish_reason for each in deltas] == [None, "stop", None]
    assert deltas[1].counts == TokenCounts(3, 4)


def test_prompt_is_removed_from_the_answer() -> None:
    """It is removed only at the start, and only once."""

    assert text(answers({"prompt"}, [CompletionDelta("Hi there"), CompletionDelta("Hi")])) == [
        " there",
        "Hi",
    ]
    assert text(answers({"prompt"}, [CompletionDelta("there")])) == ["there"]


def numbers(*values: float) -> Any:
    return [{UNKNOWN_TOKEN: {"logprob": value}} for value in values]


def entry(value: float, decoded: str) -> dict[str, Any]:
    return {"logprob": value, "rank": None, "decoded_token": decoded}


@pytest.mark.parametrize(
    ("piece", "values", "expected"),
    [
        ("ab", (-1.0, -2.0), [{97: entry(-1.0, "a")}, {98: entry(-2.0, "b")}]),
        ("ab", (-1.0,), [{UNKNOWN_TOKEN: entry(-1.0, "ab")}]),
        ("", (-1.0,), [{UNKNOWN_TOKEN: entry(-1.0, "")}]),
        ("ab", (-1.0, -2.0, -3.0), [*[{97: entry(-1.0, "a")}, {98: entry(-2.0, "b")}],
                                    {UNKNOWN_TOKEN: entry(-3.0, "")}]),
    ],
    ids=["as many", "one token of two letters", "no text", "the end's own"],
)  # fmt: skip
def test_logprobs_get_tokens(piece: str, values: Any, expected: Any) -> None:
    """They come from the tokenizer, or from the text of a response with one token."""

    (delta,) = answers({"logprobs"}, [CompletionDelta(piece, logprobs=numbers(*values))])
    assert delta.logprobs == expected


def test_logprobs_must_match_tokens() -> None:
    """Tokens are never guessed."""

    told = [CompletionDelta("abc", logprobs=numbers(-1.0, -2.0))]
    with pytest.raises(InferenceFailed, match="2 log probabilities for a text of 3 tokens"):
        answers({"logprobs"}, told)


def test_each_derivation_is_described() -> None:
    """The table in the documentation has a sentence for each."""

    assert all(sentence.endswith(".") for sentence in DERIVED.values())
