"""What the engine must return for an answer that a parser reads."""

import pytest

from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.serving.output.output_parsing import ParserConfig, with_parser_needs
from openai_frontend.serving.request.tools import NO_TOOLS, Tools
from tests.fast.serving.fake_model import FakeModel

TOOLS = Tools(functions={"f": {}}, choice="auto", allowed=frozenset("f"))
ONE_CALL = Tools(functions={"f": {}}, choice="auto", allowed=frozenset("f"), parallel=False)


def asked(tools: Tools, max_tokens: int | None, *, able: bool = True) -> GenerationRequest:
    first = GenerationRequest(request_id="r", sampling_params=SamplingParams(max_tokens=max_tokens))
    reading = ParserConfig(
        new_parser=lambda: PLAIN.parser({}, prompt=None),
        token_bytes=lambda _: None,
        may_call=tools.in_use,
        parallel_calls=tools.parallel,
    )
    return with_parser_needs(first, reading, FakeModel(supports=lambda _: able))


@pytest.mark.parametrize(
    ("tools", "max_tokens", "stream", "interval"),
    [
        (NO_TOOLS, None, False, 1),
        (TOOLS, 8192, False, 1),
        (TOOLS, 8193, True, 256),
        (TOOLS, None, True, 256),
        (ONE_CALL, 5, True, 1),
    ],
    ids=str,
)
def test_answer_that_the_parser_may_end_is_streamed(tools, max_tokens, stream, interval):
    """The engine streams it even if the client wants a complete answer. The first call, or
    arguments of 128 KiB, can end the answer, and the server then stops the engine.
    """
    request = asked(tools, max_tokens)

    assert (request.stream, request.stream_interval) == (stream, interval)
    # to count the reasoning: a stream by its responses, a complete answer by its ids
    assert (request.count_tokens, request.return_token_ids) == (stream, not stream)


def test_model_without_streaming_returns_a_complete_answer():
    assert not asked(ONE_CALL, None, able=False).stream
