"""Audio reaches models as the tensors that they declare."""

import struct
from typing import Any

import numpy
import orjson
import pytest

from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.contracts.whisper import SUPPORT
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import (
    AudioInput,
    SpeechRequest,
    TranscriptionSupport,
    salted_digest,
)
from tests.api.backends.standins.configs import NVIDIAS

SAMPLES = numpy.array([0.5, -0.25, 1.0], numpy.float32).tobytes()
AUDIO = AudioInput(samples=memoryview(SAMPLES), digest="d" * 64, param="file")
REQUEST = GenerationRequest(request_id="r", prompt="<|a|>", prompt_token_ids=[1], audio=AUDIO)
HEARD = TranscriptionSupport(
    sample_rate=16_000, window_seconds=30, languages=(), timestamps=True, translation=False
)


def config(kind: str, **more: Any) -> dict[str, Any]:
    sides = {
        side: [{"name": name, **said} for name, said in NVIDIAS[kind][side].items()]
        for side in ("input", "output")
    }
    return {"backend": "python", **sides, **more}


def inprocess(*inputs: str) -> dict[str, Any]:
    kinds = {"audio": "TYPE_FP32", "prompt_token_ids": "TYPE_INT32"}
    return {
        "backend": "inprocess",
        "input": [
            {"name": name, "data_type": kinds.get(name, "TYPE_STRING"), "dims": [-1]}
            for name in inputs
        ],
        "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]}],
    }


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def test_whisper_bls_gets_prefix_samples_and_their_number():
    """The number too, which its config calls optional."""
    chosen = select_contracts(config("whisper_bls", max_batch_size=8), decoupled=True)
    assert chosen.name == "whisper"
    assert chosen.transcription is SUPPORT
    assert chosen.generation is not None
    assert chosen.generation.encode(REQUEST) == {
        "TEXT_PREFIX": ("BYTES", (1, 1), text("<|a|>")),
        "WAV": ("FP32", (1, 3), SAMPLES),
        "WAV_LENS": ("INT32", (1, 1), struct.pack("<i", 3)),
    }
    with pytest.raises(InvalidRequest):
        chosen.generation.encode(GenerationRequest(request_id="r", prompt="a"))


@pytest.mark.parametrize("decoupled", [False, True])
def test_whisper_bls_supports_little(decoupled):
    contract = select_contracts(config("whisper_bls"), decoupled=decoupled).generation
    assert contract is not None
    fields = ("audio", "prompt", "stream", "temperature", "logprobs", "max_tokens", "seed")
    supported = [field for field in fields if contract.supports(field)]
    assert supported == (["audio", "prompt", "stream"] if decoupled else ["audio", "prompt"])


def test_in_process_model_gets_samples_and_their_salted_digest():
    declared = inprocess("prompt_token_ids", "audio", "media_info", "cache_salt")
    chosen = select_contracts(declared, options=ContractOptions(transcription=HEARD))
    assert chosen.transcription is HEARD
    assert chosen.generation is not None
    salted = GenerationRequest(request_id="r", prompt_token_ids=[1], audio=AUDIO, cache_salt="s")
    inputs = chosen.generation.encode(salted)
    assert inputs["audio"] == ("FP32", (3,), SAMPLES)
    assert orjson.loads(inputs["media_info"][2][4:]) == [
        {"kind": "audio", "digest": salted_digest(AUDIO, "s")}
    ]
    assert inputs["cache_salt"][2] == text("s")


def test_in_process_model_that_reports_no_transcription_takes_no_audio():
    contract = select_contracts(inprocess("prompt_token_ids", "audio")).generation
    assert contract is not None
    assert not contract.supports("audio")


SPEAKS: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [
        {"name": "target_text", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "SPEAKER", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        {"name": "PACE", "data_type": "TYPE_FP32", "dims": [1]},
    ],
    "output": [{"name": "waveform", "data_type": "TYPE_FP32", "dims": [-1]}],
    "parameters": {"sample_rate": {"string_value": "24000"}},
}
MAPPED = {"voice": "SPEAKER", "speed": "PACE"}


def test_speech_has_an_input_for_each_field():
    chosen = select_contracts(SPEAKS, options=ContractOptions(tensors=MAPPED), decoupled=True)
    assert chosen.name == "speech"
    assert chosen.speech is not None
    support = chosen.speech.support
    assert (support.sample_rate, support.streams) == (24_000, True)
    assert support.fields == {"voice", "speed"}
    asked = SpeechRequest(request_id="r", text="hi", voice="ada")
    assert chosen.speech.encode(asked) == {
        "target_text": ("BYTES", (1, 1), text("hi")),
        "SPEAKER": ("BYTES", (1, 1), text("ada")),
        "PACE": ("FP32", (1, 1), struct.pack("<f", 1.0)),
    }


@pytest.mark.parametrize(
    ("changed", "tensors", "reason"),
    [
        ({"parameters": {}}, MAPPED, "set the parameter 'sample_rate'"),
        ({"parameters": {"sample_rate": {"string_value": "1"}}}, MAPPED, "8000 to 384000"),
        ({}, {}, "'PACE' is required"),
        ({}, {**MAPPED, "style": "S"}, "unknown name 'style'"),
        ({}, {**MAPPED, "instructions": "MISSING"}, "an input 'MISSING' that it does not have"),
        ({}, {**MAPPED, "waveform": "MISSING"}, "none of its outputs is a waveform"),
        ({}, {**MAPPED, "text_input": "MISSING"}, "none of its inputs is a known text"),
    ],
)
def test_tensors_that_do_not_fit_are_explained(changed, tensors, reason):
    options = ContractOptions(name="speech", tensors=tensors)
    with pytest.raises(ModelUnavailable, match=reason):
        select_contracts({**SPEAKS, **changed}, options=options)
