import asyncio
import json
import math
import struct
import time

import pytest

from openai_frontend import errors
from openai_frontend.triton import inprocess
from tests import mock_models
from tests.core.triton.generation_inputs import collect, count, generate, generation, text
from tests.core.triton.waiting import until


@pytest.fixture
def start_mock(repository, start_server):
    """Starts a core with the model `mock`, whose settings are as given."""

    async def start(**settings):
        mock_models.write(repository, "mock", **settings)
        return await start_server()

    return start


async def answer(server, **sampling):
    """The answer in one response."""
    (response,) = await collect(server.infer("mock", generation(stream=False, **sampling)))
    return response


def stats():
    return inprocess.handle("mock")._engine.stats()


async def test_tokens_repeat(start_mock):
    """The output's tokens are those of the settings, repeated."""
    server = await start_mock(tokens=["a", "b", "c"])

    assert (await answer(server, max_tokens=7)).item("text_output") == b"abcabca"


async def test_stops_at_max_tokens(start_mock):
    """The finish reason is `length`."""
    response = await answer(await start_mock(), max_tokens=3)

    assert (response.item("num_output_tokens"), response.item("finish_reason")) == (3, b"length")


async def test_stops_at_its_own_length(start_mock):
    """The finish reason is `stop`."""
    response = await answer(await start_mock(answer_tokens=3), max_tokens=5)

    assert (response.item("num_output_tokens"), response.item("finish_reason")) == (3, b"stop")


async def test_ignore_eos(start_mock):
    """With ignore_eos, the output continues to max_tokens."""
    response = await answer(await start_mock(answer_tokens=3), max_tokens=5, ignore_eos=True)

    assert (response.item("num_output_tokens"), response.item("finish_reason")) == (5, b"length")


async def test_without_max_tokens_the_context_is_filled(start_mock):
    """Without max_tokens, the output continues to the end of the context."""
    response = await answer(await start_mock(max_model_len=20))

    assert (response.item("num_input_tokens"), response.item("num_output_tokens")) == (2, 18)


async def test_zero_tokens(start_mock):
    """An output without tokens is one empty response."""
    response = await answer(await start_mock(), max_tokens=0)

    assert (response.item("text_output"), response.item("num_output_tokens")) == (b"", 0)


async def test_prompt_too_long(start_mock):
    """A prompt that fills the context is refused, with both numbers."""
    server = await start_mock(max_model_len=2)

    with pytest.raises(errors.InvalidRequest, match="2 tokens, the context 2"):
        await answer(server)


async def least_s(work):
    """Seconds that the quickest of three takes: a busy machine makes the others longer."""

    async def once():
        started = time.monotonic()
        await work()
        return time.monotonic() - started

    return min([await once() for _ in range(3)])


async def test_token_rate(start_mock):
    """Tokens come at the configured rate."""
    server = await start_mock(tokens_per_second=200)

    assert 0.09 < await least_s(lambda: count(generate(server, 20))) < 1


def words(*numbers):
    """A prompt with one token per number: the mock has no tokenizer."""
    return " ".join(map(str, numbers))


async def test_prefill_takes_time_per_token(start_mock):
    """Prompts are computed one after another."""
    server = await start_mock(prefill_tokens_per_second=1000)
    inputs = generation(words(*range(100)), max_tokens=1)

    async def two():
        await asyncio.gather(*(count(server.infer("mock", inputs)) for _ in range(2)))

    assert 0.19 < await least_s(two) < 1


async def test_cached_prompt_takes_no_time(start_mock):
    """Only its last block is computed."""
    server = await start_mock(prefill_tokens_per_second=100, prefix_cache_blocks=100)
    inputs = generation(words(*range(160)), max_tokens=1)

    assert await least_s(lambda: count(server.infer("mock", inputs))) < 1


async def test_prefix_cache_is_reported(start_mock):
    """With the last response and in the engine's gauges. Other salts find nothing, and a whole
    prompt in the cache has one block less, because its last token must be computed.
    """
    server = await start_mock(prefix_cache_blocks=10, block_size=4)
    prompts = [words(*range(8)), words(*range(10)), words(*range(4), 9, 9), words(*range(8))]
    requests = [generation(prompt, stream=False, max_tokens=1) for prompt in prompts]
    requests.append({**requests[1], "cache_salt": text("tenant")})
    cached = []
    for request in requests:
        (response,) = await collect(server.infer("mock", request))
        cached.append(response.item("num_cached_tokens"))

    assert cached == [0, 8, 4, 4, 0]
    assert stats().gauges == {"vllm:kv_cache_usage_perc": 0.4}


async def test_first_token_delay(start_mock):
    """The first token comes after the configured delay."""
    server = await start_mock(first_token_delay_s=0.1)

    assert 0.09 < await least_s(lambda: anext(generate(server, 2))) < 1


async def test_engine_dies(start_mock):
    """An engine that dies fails all requests: running, waiting and new ones."""
    server = await start_mock(die_after_tokens=2, max_running=2)
    ended = await asyncio.gather(
        *(collect(generate(server, 5)) for _ in range(4)), return_exceptions=True
    )
    with pytest.raises(errors.ModelUnavailable):
        await collect(generate(server, 5))

    assert {type(error) for error in ended} == {errors.ModelUnavailable}
    assert inprocess.handle("mock").failure() == "the mock engine died, as configured"


async def test_max_running(start_mock):
    """Requests beyond the limit wait, and all are served."""
    server = await start_mock(max_running=2, tokens_per_second=500)
    long = [generate(server, 4000) for _ in range(2)]
    await until(lambda: stats().running == 2)
    waiting = [asyncio.create_task(count(generate(server, 10))) for _ in range(4)]
    await until(lambda: stats().waiting == 4)
    assert stats().running == 2
    for stream in long:
        stream.cancel()

    assert await asyncio.gather(*waiting) == [10] * 4
    assert (stats().running, stats().waiting) == (0, 0)


async def test_cancel_a_waiting_request(start_mock):
    """A waiting request can be cancelled."""
    server = await start_mock(max_running=1, tokens_per_second=100)
    running = generate(server, 4000)
    await until(lambda: stats().running == 1)
    waiting = generate(server, 10)
    await until(lambda: stats().waiting == 1)
    waiting.cancel()
    with pytest.raises(errors.RequestCancelled):
        await collect(waiting)

    assert (stats().running, stats().waiting) == (1, 0)
    running.cancel()


async def embedding(server, **request):
    (response,) = await collect(
        server.infer("mock", {"embedding_request": text(json.dumps(request))})
    )
    return response


async def test_embedding(start_mock):
    """An embedding depends only on its input, and has the configured dimensions."""
    server = await start_mock(dimensions=5)
    vectors = [
        (await embedding(server, input=text)).tolist("embedding") for text in ("a b", "a b", "c")
    ]

    assert (vectors[0] == vectors[1], vectors[0] == vectors[2]) == (True, False)
    assert [len(vector) for vector in vectors] == [5, 5, 5]


async def test_embedding_of_token_ids(start_mock):
    """Each token id counts as one token."""
    response = await embedding(await start_mock(), input=[1, 2, 3])

    assert response.item("num_input_tokens") == 3


async def test_token_ids_as_a_prompt(start_mock):
    """Each token id counts as one token."""
    server = await start_mock()
    inputs = {"prompt_token_ids": ("INT32", (4,), struct.pack("<4i", 1, 2, 3, 4))}
    (response,) = await collect(server.infer("mock", inputs | {"sampling_parameters": text("{}")}))

    assert response.item("num_input_tokens") == 4


async def test_score(start_mock):
    """A score depends only on its input."""
    server = await start_mock()
    scores = []
    for ids in ([1, 2], [1, 2], [3]):
        inputs = {"score_request": text(json.dumps({"input": ids}))}
        (response,) = await collect(server.infer("mock", inputs))
        scores.append((response.item("score"), response.item("num_input_tokens")))

    assert scores[0] == scores[1] != scores[2]
    assert [tokens for _, tokens in scores] == [2, 2, 1]


def logprobs(response, name="logprobs"):
    """Token ids in their order, for each position."""
    return [entry and list(map(int, entry)) for entry in json.loads(response.item(name))]


async def test_logprobs(start_mock):
    """The sampled token comes first, then the requested number of others, each half as likely."""
    server = await start_mock(tokens=["a", "b"])
    inputs = generation(stream=False, flags=["return_logprobs"], max_tokens=3, logprobs=2)
    (response,) = await collect(server.infer("mock", inputs))

    assert logprobs(response) == [[0, 1], [1, 2], [0, 1]]
    own, other = json.loads(response.item("logprobs"))[1].values()
    assert (own["decoded_token"], other["decoded_token"]) == ("b", "<2>")
    assert math.exp(own["logprob"]) == pytest.approx(2 * math.exp(other["logprob"]))


async def test_logprob_token_ids(start_mock):
    """Requested ids replace the most likely tokens."""
    server = await start_mock(tokens=["a", "b"])
    inputs = generation(
        stream=False, flags=["return_logprobs"], max_tokens=2, logprob_token_ids=[9]
    )
    (response,) = await collect(server.infer("mock", inputs))

    assert logprobs(response) == [[0, 9], [1, 9]]


@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_prompt_logprobs(start_mock, max_tokens):
    """Each prompt token except the first has log probabilities, only in the first response."""
    server = await start_mock()
    inputs = generation("a b c", max_tokens=max_tokens, prompt_logprobs=1)
    first, *others = await collect(server.infer("mock", inputs))

    assert logprobs(first, "prompt_logprobs") == [None, [1], [2]]
    assert [response.item("prompt_logprobs") for response in others] == [None] * (max_tokens // 2)
