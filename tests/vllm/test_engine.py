"""vLLM behind the in-process backend: the step loop, AsyncLLM, cancellation and failures."""

import asyncio
import gc
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from openai_frontend import errors
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.engines.vllm import VLLMEngine, conversion, zmq_io
from openai_frontend.generation import StructuredOutputs, merge_deltas
from openai_frontend.triton import Server, _core, inprocess
from tests.vllm.conftest import needs_step_loop, needs_whole_outputs
from tests.vllm.requests import answer, collect, completion_tokens, request, send

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

MODELS = ["demo", "demo-async-llm"]
both = pytest.mark.parametrize("model", MODELS)

SPLIT_CHARACTER = 130  # a token of the demo model for the first byte of a character

QUESTION = "<|im_start|>user\nWhat is Triton?<|im_end|>\n<|im_start|>assistant\n"


def running(model: str) -> int:
    """Return the engine's own number of running requests."""
    host = inprocess.handle(model)
    assert host is not None
    count: int = host.stats().running
    return count


async def soon_idle(leave: Callable[[], Awaitable[bool]], model: str) -> bool:
    """Whether the engine has ended a request soon after its client left, in one of some cases: a
    busy machine delays the client, the cancel or the engine. An answer to the end of the context,
    which the request asks for, takes seconds. `leave` tells whether the case counts.
    """
    for _ in range(6):
        counts = await leave()
        if await until(lambda: running(model) == 0, 120) < 0.5 and counts:
            return True
    return False


async def until(condition, timeout_s: float) -> float:
    """Wait for a condition and return the seconds it took."""
    start = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  the engine gives no event for it
            await asyncio.sleep(0.01)
    return time.monotonic() - start


async def test_failed_load_leaves_no_process(server: Server, repository: Path, monkeypatch):
    """If a load fails after the engine's start, the engine and the grammar sandbox end."""

    def fail(engine: VLLMEngine, model: object) -> None:
        raise RuntimeError("no memory for media workers")

    monkeypatch.setattr(VLLMEngine, "_prompt_media", fail)
    shutil.copytree(repository / "demo", repository / "failing")
    before = processes()
    try:
        with pytest.raises(errors.GatewayError, match="no memory for media workers"):
            await server.load_model("failing")
    finally:
        shutil.rmtree(repository / "failing")

    await until(lambda: processes() <= before, 60)


def processes() -> set[int]:
    """Return those that this process has started, by itself or through a fork server."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@needs_step_loop
async def test_models_generate_in_the_configured_way(server: Server):
    """One model runs in the step loop, the other through AsyncLLM.generate."""
    loops = [inprocess.handle(model)._engine._steps is not None for model in MODELS]

    assert loops == [True, False]


async def test_step_loop_and_async_llm_give_equal_answers(server: Server):
    """A greedy answer has the same text, tokens, finish reason and token counts."""
    answers = [await answer(server, model, QUESTION, return_token_ids=True) for model in MODELS]

    assert answers[0] == answers[1]
    assert answers[0].finish_reason == "stop"


@both
async def test_whole_and_streamed_answers_are_equal(server: Server, model: str):
    """`stream=false` returns in one response what `stream=true` returns in many."""
    streamed = await answer(server, model, QUESTION, return_token_ids=True)

    whole = await answer(server, model, QUESTION, return_token_ids=True, stream=False)

    assert whole == streamed


@needs_step_loop
async def test_incomplete_characters_are_equal_in_every_mode(server: Server):
    """Bytes that complete no character become U+FFFD before the answer ends: in streams, whole
    answers and answers with log probabilities.
    """
    first_byte = {"allowed_token_ids": [SPLIT_CHARACTER], "max_tokens": 64, "ignore_eos": True}

    answers = [
        await answer(server, "demo", QUESTION, **first_byte, **more)
        for more in ({}, {"stream": False}, {"logprobs": 1}, {"return_token_ids": True})
    ]

    texts = [each.text for each in answers]
    assert set(texts[0]) == {"\ufffd"}
    assert texts == [texts[0]] * 4


@both
async def test_whole_answer_is_one_response(server: Server, model: str):
    """Without `stream` the first response is also the last."""
    stream = send(server, model, QUESTION, stream=False)

    deltas = await collect(server, model, stream)

    assert len(deltas) == 1


@needs_step_loop
@needs_whole_outputs
async def test_tokens_of_a_whole_answer_come_in_few_messages(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """The engine's process collects them: a stream of 64 tokens takes 64 messages, a whole answer
    its first, its last and one each half second, and both have the same tokens.
    """
    messages: list[int] = []
    advance_all = _core.advance_all

    def counted(outputs, streams):
        messages.append(len(outputs))
        return advance_all(outputs, streams)

    monkeypatch.setattr(_core, "advance_all", counted)
    options = {"max_tokens": 64, "ignore_eos": True, "return_token_ids": True}
    streamed = await answer(server, "demo", QUESTION, **options)
    per_token = sum(messages)
    messages.clear()

    begun = time.monotonic()
    whole = await answer(server, "demo", QUESTION, stream=False, **options)

    assert per_token == 64
    assert sum(messages) <= 2 + (time.monotonic() - begun) / 0.5
    assert whole == streamed


@needs_step_loop
@pytest.mark.parametrize(
    "fields",
    [
        {"ignore_eos": True},
        {"ignore_eos": True, "logprobs": 2},
        {"structured_outputs": StructuredOutputs(json={"enum": ["first", "second"]})},
        {"structured_outputs": StructuredOutputs(choice=("first", "second"))},
        {"structured_outputs": StructuredOutputs(grammar='root ::= "a" [b-d]* "e"')},
        {"stop": ["never written"]},
        {"stop": ["e"], "include_stop_str_in_output": True, "min_tokens": 2},
        {"temperature": 1.0, "seed": -1, "skip_special_tokens": False},
        {"structured_outputs": StructuredOutputs(choice=("first",)), "max_tokens": None},
    ],
    ids=[
        "plain",
        "logprobs",
        "schema",
        "choice",
        "grammar",
        "stop",
        "included stop",
        "seed",
        "no max_tokens",
    ],
)
async def test_known_request_reaches_the_engine_as_the_first_one_did(
    server: Server, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
):
    """The first of several requests with the same parameters goes through vLLM's input processor;
    the engine gets the same of the others, and answers the same.
    """
    import msgspec
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder

    sent: list[EngineCoreRequest] = []
    through_processor: list[str] = []
    add, keep = zmq_io.RequestSender.add, conversion.RequestTemplates.keep

    def recorded(sender, request):
        frames = sender._client.encoder.encode(request)
        sent.append(MsgpackDecoder(EngineCoreRequest).decode(frames))
        return add(sender, request)

    def counted(templates, params, request):
        through_processor.append(request.request_id)
        keep(templates, params, request)

    monkeypatch.setattr(zmq_io.RequestSender, "add", recorded)
    monkeypatch.setattr(conversion.RequestTemplates, "keep", counted)
    prompt = [(7 * i) % 500 for i in range(600)]  # long enough to stay an array
    options = {"max_tokens": 6, "return_token_ids": True, "top_p": 0.875, **fields}

    answers = [await answer(server, "demo", prompt, **options) for _ in range(3)]

    first, *others = sent
    for each in others:
        each.arrival_time = first.arrival_time
        each.request_id = each.external_req_id = first.request_id
        assert msgspec.structs.asdict(each) == msgspec.structs.asdict(first)
    assert (len(sent), len(through_processor)) == (3, 1)
    given = [(each.text, each.token_ids, each.finish_reason, each.stop_reason) for each in answers]
    assert given == given[:1] * 3
    assert {completion_tokens(each) for each in answers} == {completion_tokens(answers[0])}


@both
async def test_prompts_of_1_to_40_tokens_one_at_a_time(server: Server, model: str):
    """No prompt length crashes the engine, including the short ones that fail with AMX."""
    lengths = []
    for length in range(1, 41):
        result = await answer(server, model, list(range(5, 5 + length)), max_tokens=2)
        lengths.append(result.counts.prompt_tokens)

    assert lengths == list(range(1, 41))


@both
async def test_prompts_of_1_to_40_tokens_at_once(server: Server, model: str):
    results = await asyncio.gather(
        *(answer(server, model, list(range(5, 5 + n)), max_tokens=3) for n in range(1, 41))
    )

    assert [result.counts.prompt_tokens for result in results] == list(range(1, 41))


@both
async def test_cancel_reaches_the_engine(server: Server, model: str):
    """After a cancel mid-stream, the engine's number of running requests is 0 within two steps."""

    async def leave() -> bool:
        stream = send(server, model, QUESTION, ignore_eos=True)
        await anext(stream)
        before = running(model)
        stream.cancel()
        with pytest.raises(errors.RequestCancelled):
            await collect(server, model, stream)
        return before == 1

    assert await soon_idle(leave, model)


@both
@pytest.mark.parametrize("prompt", [QUESTION, [5, 6, 7]], ids=["text", "token ids"])
async def test_early_cancel_reaches_the_engine(server: Server, model: str, prompt):
    """A cancel before the engine has received the request leaves nothing running."""

    async def leave() -> bool:
        stream = send(server, model, prompt, ignore_eos=True)
        stream.cancel()
        with pytest.raises(errors.RequestCancelled):
            await collect(server, model, stream)
        await asyncio.sleep(0.2)
        return running(model) == 0

    assert await soon_idle(leave, model)


@both
async def test_garbage_collected_stream_is_cancelled(server: Server, model: str):
    """A stream without references ends in the engine too."""

    async def leave() -> bool:
        stream = send(server, model, QUESTION, ignore_eos=True)
        await anext(stream)
        del stream
        return True

    assert await soon_idle(leave, model)


@both
async def test_stop_string_across_tokens(server: Server, model: str):
    """The text ends before a stop string of several tokens, and the string is the stop_reason."""
    whole = await answer(server, model, QUESTION)
    stop = whole.text[6:16]

    stopped = await answer(server, model, QUESTION, stop=[stop])

    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (
        whole.text[: whole.text.index(stop)],
        "stop",
        stop,
    )


@both
async def test_stop_token_ids(server: Server, model: str):
    """A stop token ends the answer and is the stop_reason."""
    whole = await answer(server, model, QUESTION, return_token_ids=True)
    token = whole.token_ids[3]

    stopped = await answer(server, model, QUESTION, stop_token_ids=[token])

    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)


@both
async def test_logprobs(server: Server, model: str):
    """If requested, each token has its own logprob and the requested number of alternatives."""
    result = await answer(server, model, QUESTION, max_tokens=5, logprobs=2, return_token_ids=True)

    sampled = [
        token in entry for token, entry in zip(result.token_ids, result.logprobs or (), strict=True)
    ]
    assert sampled == [True] * 5
    assert {len(entry) for entry in result.logprobs} <= {2, 3}


@both
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stop", [[], ["never written"]])
async def test_logprobs_are_equal_in_both_forms(server: Server, model: str, stream: bool, stop):
    """Arrays hold the tokens and numbers that the JSON has."""
    asked = request(QUESTION, max_tokens=8, logprobs=3, stream=stream, stop=stop)
    found = []
    for arrays in (True, False):
        contract = VLLMContract(server.model_config(model), logprob_arrays=arrays)
        responses = server.infer(model, contract.encode(asked), request_id="test")
        decode = contract.decoder(asked)
        whole = merge_deltas([decode(each) async for burst in responses for each in burst])
        positions = whole.logprobs or ()
        found.append([{id: entry["logprob"] for id, entry in each.items()} for each in positions])

    assert found[0] == found[1]
    assert len(found[0]) == 8
    assert [list(each) for each in found[0]] == [list(each) for each in found[1]]


@needs_step_loop
async def test_parsed_stream_counts_its_tokens(server: Server):
    """A response that is not of one token has the ids of its tokens."""
    asked = request(QUESTION, max_tokens=30, ignore_eos=True)
    asked.count_tokens = True
    contract = VLLMContract(server.model_config("demo"))
    responses = server.infer("demo", contract.encode(asked), request_id="test")
    decode = contract.decoder(asked)
    deltas = [decode(each) async for burst in responses for each in burst]

    assert sum(len(each.token_ids) or each.tokens for each in deltas) == 30
    assert completion_tokens(deltas[-1]) == 30


@both
async def test_cached_tokens(server: Server, model: str):
    """A repeated prompt comes from the prefix cache, in whole blocks of 32 tokens."""
    prompt = list(range(100, 200))
    await answer(server, model, prompt, max_tokens=1)

    again = await answer(server, model, prompt, max_tokens=1)

    assert again.counts.cached_tokens == 96


@both
@pytest.mark.parametrize("options", [{}, {"stop": ("no such text",)}, {"logprobs": 2}], ids=str)
async def test_first_delta_has_the_cached_tokens(
    server: Server, model: str, options: dict[str, Any]
):
    """If the request asks for them."""
    prompt = list(range(300, 400))
    await answer(server, model, prompt, max_tokens=1)
    asked = request(prompt, max_tokens=4, ignore_eos=True, **options)
    asked.count_prompt = True
    contract = VLLMContract(server.model_config(model))
    responses = server.infer(model, contract.encode(asked), request_id="test")
    decode = contract.decoder(asked)

    deltas = [decode(each) async for burst in responses for each in burst]

    first, last = deltas[0].counts, deltas[-1].counts
    assert first is not None
    assert last is not None
    assert (first.prompt_tokens, first.cached_tokens) == (100, 96)
    assert (last.prompt_tokens, last.cached_tokens) == (100, 96)
    counts = [each.counts.completion_tokens for each in deltas if each.counts is not None]
    assert (len(counts), sum(counts)) == (2, 4)


@both
async def test_prompt_longer_than_the_context_is_refused(server: Server, model: str):
    """The engine's refusal is an invalid request, and the engine continues."""
    with pytest.raises(errors.InvalidRequest):
        await answer(server, model, [5] * 3000)

    assert (await answer(server, model, QUESTION, max_tokens=1)).finish_reason == "length"


@both
async def test_64_greedy_streams_are_equal(server: Server, model: str):
    """64 concurrent greedy answers to one prompt are equal."""
    results = await asyncio.gather(*(answer(server, model, QUESTION) for _ in range(64)))

    assert {result.text for result in results} == {results[0].text}


@both
async def test_bad_sampling_parameters_are_invalid_requests(server: Server, model: str):
    """This includes what vLLM refuses and what would crash its GPU worker."""
    for options in ({"temperature": -1.0}, {"min_tokens": 1, "stop_token_ids": tuple(range(200))}):
        with pytest.raises(errors.InvalidRequest):
            await answer(server, model, QUESTION, **options)


@both
async def test_negative_token_id_is_an_invalid_request(
    server: Server, model: str, monkeypatch: pytest.MonkeyPatch
):
    """vLLM before 0.28 does not refuse it."""
    from vllm.renderers.base import BaseRenderer

    monkeypatch.setattr(BaseRenderer, "validate_token_ids", lambda *_, **__: None, raising=False)

    with pytest.raises(errors.InvalidRequest, match="-1 is not a token id"):
        await answer(server, model, [5, -1])
    assert (await answer(server, model, [5], max_tokens=1)).finish_reason == "length"


@needs_step_loop
async def test_step_metrics_count_tokens_and_intervals(server: Server):
    """Once the answer is over, the metrics count the tokens of prompt and answer, the steps, and
    one interval fewer than the answer has tokens.
    """

    def told() -> dict[str, float]:
        samples = server.model_samples("demo")
        return {name: value for name, labels, value in samples if not labels}

    prompt = list(range(100, 120))
    await answer(
        server, "demo", prompt, max_tokens=1
    )  # so that the metrics of earlier requests are complete
    before = told()
    await answer(server, "demo", prompt, max_tokens=9, ignore_eos=True, cache_salt="new")
    after = told()

    grown = {name: after[name] - value for name, value in before.items()}
    assert grown["vllm:iteration_tokens_total_sum"] == len(prompt) + 8
    assert grown["vllm:iteration_tokens_total_count"] == 9
    assert grown["vllm:inter_token_latency_seconds_count"] == 8
    assert 0 < grown["vllm:inter_token_latency_seconds_sum"] < 60


@needs_step_loop
async def test_finished_requests_leave_no_native_objects(server: Server):
    """All native counters are zero when all streams have ended."""
    await answer(server, "demo", QUESTION)

    gc.collect()  # tracebacks of earlier failures hold references
    assert set(_core.live_counts().values()) == {0}


async def test_reload_lets_streams_finish(server: Server, repository):
    """Streams that run during a reload end normally; later ones run on the new engine."""
    before = inprocess.handle("demo")
    expected = await answer(server, "demo", QUESTION)
    os.utime(repository / "demo" / "1" / "model.json")
    stream = send(server, "demo", QUESTION, ignore_eos=True, max_tokens=1500)
    await anext(stream)

    await server.load_model("demo")
    deltas = await collect(server, "demo", stream)

    assert deltas[-1].finish_reason == "length"
    assert inprocess.handle("demo") is not before
    assert await answer(server, "demo", QUESTION) == expected


async def test_killed_engine_fails_its_streams_and_can_be_loaded_again(server: Server):
    """After a kill mid-stream, the stream fails with a clear error, readiness is false within
    seconds, and a load makes the model ready again.
    """
    process = engine_process("demo-async-llm")
    stream = send(server, "demo-async-llm", QUESTION, ignore_eos=True)
    await anext(stream)

    process.kill()
    with pytest.raises(errors.ModelUnavailable, match="engine process died"):
        await collect(server, "demo-async-llm", stream)
    await until(lambda: not server.model_is_ready("demo-async-llm"), 30)
    other = await answer(server, "demo", QUESTION)
    await server.load_model("demo-async-llm")
    again = await answer(server, "demo-async-llm", QUESTION)

    assert again == other


def engine_process(model: str) -> psutil.Process:
    """Return the EngineCore process of a model."""
    host = inprocess.handle(model)
    [process] = host._engine._engine.engine_core.resources.engine_manager.processes
    return psutil.Process(process.pid)
