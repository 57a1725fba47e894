import asyncio
import json
import struct
from collections.abc import Sequence

import pytest

from openai_frontend import errors
from openai_frontend.engines import loader
from openai_frontend.engines.engine import Engine, EngineError, ModelFacts, ModelSpec
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.pooling import EmbeddingResult
from openai_frontend.triton import InferenceResponse, inprocess
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.triton.generation_inputs import collect, flag, generation, number, text

LOGPROBS = {7: {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}


class Recites(Engine):
    """Sends deltas that are set for the class, and keeps the requests."""

    deltas: Sequence[CompletionDelta] = ()
    requests: list[GenerationRequest]
    model: ModelSpec

    def load(self, model):
        type(self).model = model
        return ModelFacts(max_model_len=10, owned_by="tests")

    def generate(self, request, sink):
        self.requests.append(request)
        for delta in self.deltas:
            sink.send(delta)


CONFIG = failing_engines.config("Recites").replace(failing_engines.__name__, __name__)
COUNTS = TokenCounts(prompt_tokens=4, cached_tokens=3)
DELTAS = [
    CompletionDelta(
        text="a", token_ids=(7,), logprobs=[LOGPROBS], prompt_logprobs=[None, LOGPROBS]
    ),
    CompletionDelta(text="", token_ids=(8, 9)),
    CompletionDelta(text="b", token_ids=(10,), finish_reason="stop", stop_reason=10, counts=COUNTS),
]


@pytest.fixture
async def reciting(repository, start_server, monkeypatch):
    """A core whose model `mock` recites the deltas above."""
    monkeypatch.setattr(Recites, "deltas", DELTAS)
    monkeypatch.setattr(Recites, "requests", [], raising=False)
    mock_models.write(repository, "mock", config=CONFIG, some="argument")
    return await start_server()


def told(response):
    """What a response tells, by output."""
    return {name: response.tolist(name) for name in response.names}


async def test_engine_gets_its_model_spec(reciting, repository):
    """An engine gets its model's name, version, folder, parameters and arguments."""
    model = Recites.model

    assert (model.name, model.version, model.folder) == ("mock", 1, repository / "mock")
    assert model.arguments == {"some": "argument"}
    assert model.parameters.keys() == {"engine"}


async def test_model_facts_reach_the_gateway(reciting):
    """The facts that an engine reports are available by the model's name."""
    assert reciting.model_facts("mock").owned_by == "tests"


async def test_plain_text_stream(reciting):
    """A stream has one response per text; the last one has the counts and reasons."""
    responses = await collect(reciting.infer("mock", generation()))

    assert [told(response) for response in responses] == [
        {"text_output": [b"a"]},
        {
            "text_output": [b"b"],
            "num_output_tokens": [4],
            "finish_reason": [b"stop"],
            "stop_reason": [b"10"],
            "num_input_tokens": [4],
            "num_cached_tokens": [3],
        },
    ]


class Spells(Engine):
    """Sends a letter for each token, on the short way or not, and ends or fails."""

    short = True
    fails = False

    def load(self, model):
        return ModelFacts(max_model_len=100)

    def generate(self, request, sink):
        for letter in request.prompt:
            text = letter.strip("_")  # a token may be a part of a character
            if self.short:
                sink.send_text(text, [7])
            else:
                sink.send(CompletionDelta(text, [7]))
        if self.fails:
            sink.fail(EngineError("no more"))
        else:
            sink.send(CompletionDelta("!", [8], "stop", counts=COUNTS))


async def spelled(start_server, repository, prompt, *, interval=3):
    """The texts of the responses, and the error that ended them."""
    config = failing_engines.config("Spells").replace(failing_engines.__name__, __name__)
    mock_models.write(repository, "mock", config=config)
    server = await start_server()
    inputs = {**generation(prompt), "stream_interval": number(interval)}
    responses: list[InferenceResponse] = []
    failure = None
    try:
        await collect(server.infer("mock", inputs), into=responses)
    except errors.GatewayError as error:
        failure = error.message
    return [response.item("text_output") for response in responses], failure


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abcdefg", [b"a", b"bcd", b"efg", b"!"]),
        ("abcdef", [b"a", b"bcd", b"ef!"]),
        ("_ab", [b"a", b"b!"]),
        ("a__bc", [b"a", b"b", b"c!"]),
        ("", [b"!"]),
    ],
)
async def test_stream_interval(repository, start_server, monkeypatch, prompt, expected, short):
    """A response has `stream_interval` tokens; the first token is sent at once."""
    monkeypatch.setattr(Spells, "short", short)

    assert await spelled(start_server, repository, prompt) == (expected, None)


async def test_failure_comes_after_buffered_text(repository, start_server, monkeypatch):
    """Text that was generated before the failure is not lost."""
    monkeypatch.setattr(Spells, "fails", True)

    assert await spelled(start_server, repository, "abc") == ([b"a", b"bc"], "no more")


async def test_a_stream_with_counts(reciting):
    """If requested, each response counts the tokens it adds, even without text."""
    inputs = generation(flags=["return_num_output_tokens"])
    responses = await collect(reciting.infer("mock", inputs))

    assert [response.item("num_output_tokens") for response in responses] == [1, 2, 1]


async def test_a_stream_with_token_ids(reciting):
    """If requested, each response has its token ids."""
    responses = await collect(reciting.infer("mock", generation(flags=["return_token_ids"])))

    assert [response.tolist("token_ids") for response in responses] == [[7], [8, 9], [10]]


async def test_a_stream_with_logprobs(reciting):
    """If requested, log probabilities come as JSON with their tokens."""
    responses = await collect(reciting.infer("mock", generation(flags=["return_logprobs"])))

    assert json.loads(responses[0].item("logprobs")) == [{"7": LOGPROBS[7]}]
    assert responses[1].item("logprobs") is None


async def test_a_stream_with_prompt_logprobs(reciting):
    """If requested, they come as JSON, once, with the first response."""
    responses = await collect(reciting.infer("mock", generation(prompt_logprobs=1)))
    told = [response.item("prompt_logprobs") for response in responses]

    assert json.loads(told[0]) == [None, {"7": LOGPROBS[7]}]
    assert told[1:] == [None, None]


async def test_non_streaming(reciting):
    """A request that does not stream gets one response with everything the deltas contained."""
    inputs = generation(stream=False, flags=["return_token_ids", "return_logprobs"])
    (response,) = await collect(reciting.infer("mock", inputs))

    of_json = {name: json.loads(response.item(name)) for name in ("logprobs", "prompt_logprobs")}
    outputs = {**told(response), **of_json}
    assert 0 < outputs.pop("first_token_latency")[0] < 5
    assert outputs == {
        "text_output": [b"ab"],
        "num_output_tokens": [4],
        "token_ids": [7, 8, 9, 10],
        "logprobs": [{"7": LOGPROBS[7]}],
        "prompt_logprobs": [None, {"7": LOGPROBS[7]}],
        "finish_reason": [b"stop"],
        "stop_reason": [b"10"],
        "num_input_tokens": [4],
        "num_cached_tokens": [3],
    }


async def test_stop_reason_of_a_stop_string(reciting, monkeypatch):
    """A stop string is JSON text, which distinguishes it from a token id."""
    delta = CompletionDelta(text="a", finish_reason="stop", stop_reason="10")
    monkeypatch.setattr(Recites, "deltas", [delta])
    (response,) = await collect(reciting.infer("mock", generation()))

    assert response.item("stop_reason") == b'"10"'


async def test_request_ids_are_unique(reciting):
    """The engine can distinguish requests with the same id."""
    for _ in range(2):
        await collect(reciting.infer("mock", generation(), request_id="mine"))
    first, second = (request.request_id for request in Recites.requests)

    assert first != second
    assert first.endswith("-mine")


async def test_engine_gets_the_request(reciting):
    """The engine gets the prompt and the sampling parameters of the tensors."""
    inputs = {
        "prompt_token_ids": ("INT32", (3,), struct.pack("<3i", 5, 6, 7)),
        "sampling_parameters": text('{"seed": 3}'),
        "priority": ("INT32", (1,), struct.pack("<i", -1)),
        "cache_salt": text("salt"),
    }
    await collect(reciting.infer("mock", inputs))
    (request,) = Recites.requests

    assert (request.prompt, request.prompt_token_ids) == (None, [5, 6, 7])
    assert (request.sampling_params.seed, request.stream) == (3, False)
    assert (request.priority, request.cache_salt) == (-1, "salt")


REFUSED = {
    "no prompt": ({"stream": flag()}, "needs text_input or prompt_token_ids"),
    "no JSON": ({"text_input": text("x"), "sampling_parameters": text("{")}, "sampling_parameters"),
    "unknown key": (generation(banana=1), "sampling_parameters.*banana"),
    "wrong type": (generation(max_tokens="five"), "sampling_parameters: max_tokens"),
    "no embedding": ({"embedding_request": text("{}")}, "embedding_request"),
    "no score": ({"score_request": text("{}")}, "score_request"),
}


@pytest.mark.parametrize(("inputs", "message"), REFUSED.values(), ids=REFUSED)
async def test_invalid_request(reciting, inputs, message):
    """Invalid tensors are the caller's error; the engine never sees them."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await collect(reciting.infer("mock", inputs))
    assert Recites.requests == []


async def test_an_engine_without_embeddings(reciting):
    """An engine without embeddings returns an error to the client."""
    with pytest.raises(errors.InvalidRequest, match="does not support embeddings"):
        await collect(reciting.infer("mock", {"embedding_request": text('{"input": "hi"}')}))


async def test_invalid_embedding_ends_the_request(reciting, monkeypatch):
    """An embedding that is not an array is an error of this request."""

    async def embed(self, request):
        return EmbeddingResult(None, prompt_tokens=1)  # type: ignore[arg-type]

    monkeypatch.setattr(Recites, "embed", embed, raising=False)
    async with asyncio.timeout(30):
        with pytest.raises(errors.InferenceFailed, match="TypeError"):
            await collect(reciting.infer("mock", {"embedding_request": text('{"input": "hi"}')}))


async def test_an_engine_without_scores(reciting):
    """An engine that is not a cross-encoder returns an error to the client."""
    with pytest.raises(errors.InvalidRequest, match="is not a cross-encoder"):
        await collect(reciting.infer("mock", {"score_request": text('{"input": [1]}')}))


async def test_handle_forgets_finished_requests(reciting):
    """A handle keeps no reference to finished requests."""
    for _ in range(10):
        await collect(reciting.infer("mock", generation()))
    host = inprocess.handle("mock")

    assert (host._live, host._tasks) == ({}, {})


async def test_declared_tensor_is_kept(repository, start_server):
    """A tensor that the user's config declares keeps its shape in the loaded model."""
    own = 'input { name: "text_input" data_type: TYPE_STRING dims: [-1] optional: true }\n'
    mock_models.write(repository, "mock", config=mock_models.CONFIG + own)
    server = await start_server()
    shapes = {i["name"]: i["shape"] for i in server.model_metadata("mock")["inputs"]}

    assert (shapes["text_input"], shapes["stream"]) == ([-1], [1])


def test_vllm_not_installed(monkeypatch, tmp_path, caplog):
    """The load fails and names the extra to install; no traceback is logged."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = {"parameters": {"engine": {"string_value": "vllm"}}}
    with asyncio.Runner() as runner, pytest.raises(RuntimeError, match="Install the extra 'vllm'"):
        loader.load("m", 1, tmp_path, config, runner.get_loop())

    assert caplog.records == []
