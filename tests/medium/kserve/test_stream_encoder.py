"""The bytes of streamed responses, against protobuf's own."""

from typing import Any

import pytest

from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from openai_frontend.kserve.grpc.stream_encoder import StreamEncoder
from openai_frontend.kserve.grpc.tensors import final_parameter, write_answer
from openai_frontend.kserve.inference import Answer, ModelVersion
from openai_frontend.kserve.outputs import OutputTensor, RequestedOutput

Response = methods(INFERENCE)["ModelStreamInfer"].response
MODEL = ModelVersion("é" * 100, "1")
DEFAULT = RequestedOutput("", binary=True)


def output(data: bytes, name: str = "text_output") -> tuple[OutputTensor, RequestedOutput]:
    return OutputTensor(name, "UINT8", (len(data),), memoryview(data)), DEFAULT


def answer(*outputs: Any, final: bool = False, request_id: str | None = "7", **parameters: Any):
    return Answer(MODEL, request_id, outputs, parameters, final)


ANSWERS = {
    "a token": [answer(output(b"a"))],
    "tokens of one length": [answer(output(b"a")), answer(output(b"b"))],
    "tokens of other lengths": [answer(output(b"x" * length)) for length in (0, 127, 128, 20000)],
    "the last": [answer(output(b"a")), answer(output(b"a"), final=True)],
    "an empty end": [answer(final=True)],
    "two outputs": [answer(output(b"a"), output(b"\x00", "other"))] * 2,
    "no id": [answer(output(b"a"), request_id=None)],
    "parameters": [answer(output(b"a"), seed=1), answer(output(b"a"), seed=2)],
    "many forms": [answer(output(b"x" * length)) for length in range(40)],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_responses_equal_protobufs(name):
    """Whatever the responses before: each is the whole message."""
    encoder = StreamEncoder()
    for each in ANSWERS[name]:
        expected = Response()
        write_answer(each, expected.infer_response)
        final_parameter(expected.infer_response, final=each.final)

        assert Response.FromString(encoder.encode(each)) == expected
