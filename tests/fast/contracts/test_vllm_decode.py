"""Recorded responses of vLLM models become exact deltas; decoding stays within its time budget."""

import time
import timeit

import pytest

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    REMOTE_DECODE,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from tests.cpu_time import budget
from tests.fast.contracts.recorded import INPROCESS, NVIDIA_VLLM, RecordedOutputs, tensors


@pytest.mark.parametrize(
    ("outputs", "delta"),
    [
        (RecordedOutputs(text_output=b"Hi"), CompletionDelta("Hi")),
        (RecordedOutputs(text_output="é".encode()), CompletionDelta("é")),
        (RecordedOutputs(text_output=b"\xff"), CompletionDelta("\ufffd")),
        (RecordedOutputs(final=True), CompletionDelta()),
        (RecordedOutputs(text_output=b"a", token_ids=[5, 6]), CompletionDelta("a", [5, 6])),
        (
            RecordedOutputs(
                final=True,
                text_output=b".",
                finish_reason=b"length",
                num_input_tokens=7,
                num_output_tokens=2,
                num_cached_tokens=4,
            ),
            CompletionDelta(".", finish_reason="length", counts=TokenCounts(7, 2, 4)),
        ),
        (
            RecordedOutputs(finish_reason=b"stop", stop_reason=b'"END"', text_output=b""),
            CompletionDelta(finish_reason="stop", stop_reason="END"),
        ),
        (
            RecordedOutputs(finish_reason=b"stop", stop_reason=b"151645", text_output=b""),
            CompletionDelta(finish_reason="stop", stop_reason=151645),
        ),
        (
            RecordedOutputs(
                text_output=b"a",
                logprobs=b'[{"5":{"logprob":-0.5,"rank":1,"decoded_token":"a"}}]',
            ),
            CompletionDelta(
                "a", logprobs=[{5: {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}]
            ),
        ),
        (
            RecordedOutputs(prompt_logprobs=b'[null,{"5":{"logprob":-0.5,"rank":1}}]'),
            CompletionDelta(prompt_logprobs=[None, {5: {"logprob": -0.5, "rank": 1}}]),
        ),
        (
            RecordedOutputs(logprobs=b'[{"5":{"logprob":-Infinity,"rank":9}}]'),
            CompletionDelta(logprobs=[{5: {"logprob": -9999.0, "rank": 9}}]),
        ),
        (
            RecordedOutputs(logprobs=b'[null,{"5":{"logprob":null,"rank":null}}]'),
            CompletionDelta(logprobs=[None, {5: {"logprob": -9999.0, "rank": None}}]),  # type: ignore[list-item]
        ),
    ],
)
def test_in_process_response_becomes_a_delta(
    outputs: RecordedOutputs, delta: CompletionDelta
) -> None:
    """Text with each response, finish reason and counts with the last."""

    assert delta == VLLMContract(INPROCESS).decode(outputs)


@pytest.mark.parametrize(
    ("outputs", "delta"),
    [
        (
            RecordedOutputs(
                text_output=[b" a"],
                finish_reason=[b"None"],
                num_input_tokens=3,
                num_output_tokens=[1],
                logprobs=[b"null"],
            ),
            CompletionDelta(" a", counts=TokenCounts(3, 1, 0)),
        ),
        (
            RecordedOutputs(
                final=True,
                text_output=[b" b"],
                finish_reason=[b"stop"],
                num_input_tokens=3,
                num_output_tokens=[1],
            ),
            CompletionDelta(" b", finish_reason="stop", counts=TokenCounts(3, 1, 0)),
        ),
    ],
)
def test_nvidia_backend_response_becomes_a_delta(
    outputs: RecordedOutputs, delta: CompletionDelta
) -> None:
    """Its "None" is no finish reason, and its counts come with every response."""

    assert delta == VLLMContract(NVIDIA_VLLM).decode(outputs)


def test_counts_arrive_without_a_finish_reason_output() -> None:
    """A model that declares no finish_reason still reports its counts."""

    config = {"output": tensors("text_output:STRING num_output_tokens:UINT32")}
    delta = VLLMContract(config).decode(RecordedOutputs(text_output=b"a", num_output_tokens=1))
    assert delta == CompletionDelta("a", counts=TokenCounts(0, 1, 0))


def test_unknown_finish_reason_fails_the_request() -> None:
    """An unknown reason is an engine failure and is never reported as `stop`."""

    with pytest.raises(InferenceFailed, match="'error'"):
        VLLMContract(INPROCESS).decode(RecordedOutputs(finish_reason=b"error"))


def test_plain_delta_is_decoded_fast() -> None:
    """The per-token path stays near its budget of 1.5 us."""

    decode, outputs = VLLMContract(INPROCESS).decode, RecordedOutputs(text_output=b" token")
    timings = timeit.repeat(
        lambda: decode(outputs), number=2_000, repeat=20, timer=time.process_time
    )
    assert min(timings) / 2_000 < budget(3 * 1.5e-6)


def test_fast_path_equals_decode():
    """The decoder of a plain request to an in-process model returns what `decode` returns."""
    contract = VLLMContract(INPROCESS)
    short = contract.decoder(GenerationRequest(request_id="1", stream=True))
    middle = RecordedOutputs(text_output="é".encode())
    last = RecordedOutputs(final=True, text_output=b"b", finish_reason=b"stop", num_output_tokens=2)

    assert short != contract.decode
    assert [short(middle), short(last)] == [contract.decode(middle), contract.decode(last)]


@pytest.mark.parametrize(
    "extra",
    [
        {"return_token_ids": True},
        {"sampling_params": SamplingParams(logprobs=1)},
        {"sampling_params": SamplingParams(logprob_token_ids=[1])},
        {"sampling_params": SamplingParams(prompt_logprobs=0)},
    ],
)
def test_fast_path_is_for_plain_requests(extra):
    """A request with token ids or logprobs is decoded in full."""
    contract = VLLMContract(INPROCESS)

    assert contract.decoder(GenerationRequest(request_id="1", **extra)) == contract.decode


def test_other_backends_are_decoded_in_full():
    """NVIDIA's backend reports its finish reason and counts in every response."""
    contract = VLLMContract(NVIDIA_VLLM)
    outputs = RecordedOutputs(
        text_output=[b" a"], finish_reason=[b"stop"], num_input_tokens=3, num_output_tokens=[1]
    )

    assert contract.decoder(GenerationRequest(request_id="1"))(outputs) == contract.decode(outputs)


def test_only_requests_with_a_transfer_read_what_it_reports() -> None:
    """Others do not look the outputs up."""
    last = RecordedOutputs(
        final=True,
        text_output=b".",
        finish_reason=b"length",
        num_input_tokens=7,
        num_output_tokens=1,
        num_transferred_tokens=6,
        kv_transfer_params=b'{"remote_port": 5}',
    )
    contract, plain = VLLMContract(INPROCESS), GenerationRequest(request_id="r")
    transferring = GenerationRequest(request_id="r", kv_transfer=REMOTE_DECODE)

    counts = contract.decoder(transferring)(last).counts
    assert counts == TokenCounts(7, 1, transferred_tokens=6, kv_transfer_params={"remote_port": 5})
    assert contract.decoder(plain)(last).counts == TokenCounts(7, 1)
