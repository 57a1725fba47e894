"""A character whose bytes come in several responses is one character of the answer."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.contracts import Contract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.generation import GenerationRequest, SamplingParams
from tests.examples import scaled
from tests.fast.contracts.recorded import (
    ACCUMULATING_BLS,
    BLS,
    DECOUPLED_LLMAPI,
    ENSEMBLE,
    NVIDIA_VLLM,
    PYTHON,
    PYTHON_TENSORS,
    Letters,
    RecordedOutputs,
    tensors,
)

TEXT = "공부 😊 Grüße\n"
REPEATING = {"whisper", "llmapi", "accumulating_bls"}  # each response has the text from its start

WHISPER = {
    "input": tensors("TEXT_PREFIX:STRING WAV:FP32 WAV_LENS:INT32"),
    "output": tensors("TRANSCRIPTS:STRING"),
}

# Kind of model -> its config and its output with the text
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "python": (PYTHON, "REPLY"),
    "nvidia_vllm": (NVIDIA_VLLM, "text_output"),
    "llmapi": (DECOUPLED_LLMAPI, "text_output"),
    "ensemble": (ENSEMBLE, "text_output"),
    "bls": (BLS, "text_output"),
    "accumulating_bls": (ACCUMULATING_BLS, "text_output"),
    "whisper": (WHISPER, "TRANSCRIPTS"),
}


@cache
def contract(kind: str) -> Contract:
    config, _ = MODELS[kind]
    options = ContractOptions(tensors=PYTHON_TENSORS if kind == "python" else {})
    chosen = select_contracts(config, options=options, decoupled=True, vocabulary=Letters())
    assert chosen.generation is not None
    return chosen.generation


def responses(kind: str, pieces: list[bytes], *, empty_end: bool) -> list[RecordedOutputs]:
    """The responses with these pieces of a text; if `empty_end`, the last one has no output."""
    if kind in REPEATING:
        pieces = [b"".join(pieces[: at + 1]) for at in range(len(pieces))]
    last = len(pieces) - (not empty_end)
    values: list[dict[str, Any]] = [{MODELS[kind][1]: [piece]} for piece in pieces]
    parts = [RecordedOutputs(final=at == last, **each) for at, each in enumerate(values)]
    return [*parts, RecordedOutputs(final=True)] if empty_end else parts


def answer(kind: str, pieces: list[bytes], *, empty_end: bool = False, **params: Any) -> list[str]:
    request = GenerationRequest(
        request_id="r", prompt="", prompt_token_ids=[1], sampling_params=SamplingParams(**params)
    )
    read = contract(kind).decoder(request)
    return [read(each).text for each in responses(kind, pieces, empty_end=empty_end)]


def split(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


bodies = st.one_of(st.text().map(str.encode), st.binary(max_size=12))
cut_lists = st.lists(st.integers(0, 99), max_size=8)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=scaled(50))
@given(text=bodies, cuts=cut_lists, empty_end=st.booleans())
def test_any_split_gives_the_same_text(
    kind: str, text: bytes, cuts: list[int], empty_end: bool
) -> None:
    """Bytes that are not UTF-8 become U+FFFD, as they do in one piece."""

    texts = answer(kind, split(text, cuts), empty_end=empty_end)

    assert "".join(texts) == text.decode("utf-8", "replace")


@pytest.mark.parametrize("kind", ["python", "ensemble", "bls", "accumulating_bls"])
@settings(max_examples=scaled(20))
@given(cuts=cut_lists)
def test_stop_strings_of_split_characters_are_found(kind: str, cuts: list[int]) -> None:
    """The text ends before the stop string, wherever the responses split it."""

    assert "".join(answer(kind, split(TEXT.encode(), cuts), stop=["😊 G"])) == "공부 "


@settings(max_examples=scaled(20))
@given(cuts=cut_lists)
def test_each_sequence_has_its_own_characters(cuts: list[int]) -> None:
    """Two sequences in the same responses do not mix their bytes."""
    texts = [split(TEXT.encode(), cuts), split(TEXT[::-1].encode(), cuts)]
    asked = GenerationRequest(request_id="r", prompt="", prompt_token_ids=[1], sequences=2)
    read = [contract("ensemble").decoder(replace(asked, sequence=at)) for at in (0, 1)]
    outputs = [
        RecordedOutputs(final=at == len(cuts), text_output=list(pair))
        for at, pair in enumerate(zip(*texts, strict=True))
    ]

    answers = ["".join(decode(each).text for each in outputs) for decode in read]

    assert answers == [TEXT, TEXT[::-1]]


@pytest.mark.parametrize("kind", ["llmapi", "nvidia_vllm"])
def test_a_finish_reason_ends_the_text(kind: str) -> None:
    """An incomplete character before it becomes U+FFFD, even if an empty response follows."""
    end = RecordedOutputs(text_output=[TEXT.encode()[:2]], finish_reason=[b"stop"])
    read = contract(kind).decoder(GenerationRequest(request_id="r", prompt=""))

    assert [read(each).text for each in (end, RecordedOutputs(final=True))] == ["\ufffd", ""]


@pytest.mark.parametrize("kind", MODELS)
def test_text_that_may_be_split_is_never_relayed(kind: str) -> None:
    """Native code writes each response's text alone, so only models in process may use it."""
    request = GenerationRequest(request_id="r", prompt="", stream=True)

    assert contract(kind).text_output(request) is None
