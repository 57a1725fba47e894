"""OpenAI's API on each kind of model: supported fields take effect, others are refused.

The tests do not depend on a model's text, so that they also run against real models.
"""

import json
import time
from typing import Any

import openai
import psutil
import pytest

from scripts.generate_backends_docs import FIELDS
from tests.api.backends.models import VARIABLE, Model, repository

pytestmark = pytest.mark.slow

QUESTION: list[Any] = [{"role": "user", "content": "What is Triton?"}]
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TOKENS = 12


def chat(client: openai.OpenAI, model: Model, **fields: Any) -> Any:
    """A short answer, reproducible unless the request says otherwise."""
    request = {"model": model.name, "messages": QUESTION, "max_tokens": TOKENS, "temperature": 0}
    return client.chat.completions.create(**{**request, **fields})


def text_of(client: openai.OpenAI, model: Model, **fields: Any) -> str:
    content: str = chat(client, model, **fields).choices[0].message.content
    return content


def test_chat(client, model):
    """An answer has a text, a finish reason, and counts that add up."""
    completion = chat(client, model)

    [choice] = completion.choices
    usage = completion.usage
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert 0 < usage.completion_tokens <= TOKENS
    assert usage.prompt_tokens > 3
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_stream_equals_the_complete_answer(client, model):
    """Joined pieces equal the answer, with reason and counts; a streaming model sends many."""
    whole = chat(client, model)
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}))

    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [choice.delta.content for choice in choices if choice.delta.content]
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert "".join(pieces) == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert (len(pieces) > 3) == model.honours("stream")


def test_completions(client, model):
    """A completion continues its prompt and does not contain it."""
    prompt = "Triton Inference Server is"

    completion = client.completions.create(
        model=model.name, prompt=prompt, max_tokens=TOKENS, temperature=0
    )

    assert not completion.choices[0].text.startswith(prompt)
    assert completion.usage.completion_tokens <= TOKENS


def test_max_tokens(client, model):
    """The limit holds, sets the finish reason, and matches the count."""
    completion = chat(client, model, max_tokens=3)

    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_stop(client, model, stream):
    """The answer ends before the stop text."""
    whole = text_of(client, model)
    stop = whole[len(whole) // 2 :][:4]  # usually not a single token

    told = chat(client, model, stop=[stop], stream=stream)

    if stream:
        choices = [chunk.choices[0] for chunk in told if chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        reason = choices[-1].finish_reason
    else:
        text, reason = told.choices[0].message.content, told.choices[0].finish_reason
    assert text == whole[: whole.index(stop)]
    assert reason == "stop"


def test_choices_and_seeds(client, model):
    """A seed reproduces the choices, and its n choices differ."""
    if not model.honours("seed"):
        refused(client, model, "seed", seed=1)
        return
    drawn = {"temperature": 2.0, "top_p": 1.0, "seed": 11, "n": 3}

    first, again = (chat(client, model, **drawn).choices for _ in range(2))

    texts = [choice.message.content for choice in first]
    assert [choice.index for choice in first] == [0, 1, 2]
    assert texts == [choice.message.content for choice in again]
    assert len(set(texts)) > 1


def test_logprobs(client, model):
    """Each token has its log probability, and the joined tokens are the answer."""
    if not model.honours("logprobs"):
        refused(client, model, "logprobs", logprobs=True)
        return

    [choice] = chat(client, model, logprobs=True).choices

    content = choice.logprobs.content
    assert all(token.logprob <= 0 for token in content)
    assert "".join(token.token for token in content).startswith(choice.message.content)


def test_logit_bias(client, model, first_token):
    """A bias of -100 excludes the most likely token."""
    whole = text_of(client, model)
    bias = {str(first_token(model.name, whole)): -100}
    if not model.honours("logit_bias"):
        refused(client, model, "logit_bias", logit_bias=bias)
        return

    assert not text_of(client, model, logit_bias=bias).startswith(whole[:4])


def test_response_format(client, model):
    """The answer matches the schema, whatever the model would generate."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    if not model.honours("response_format"):
        refused(client, model, "response_format", response_format=form)
        return

    # Against endless white space, which a schema allows and a small model prefers
    held = {"response_format": form, "frequency_penalty": 2.0, "max_tokens": 120}
    answer = json.loads(text_of(client, model, **held))

    assert isinstance(answer["age"], int)


def test_tools(client, model):
    """Tools may be offered to every model; a required call has arguments of its schema."""
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 80}
    assert chat(client, model, tools=[WEATHER]).choices
    if not model.honours("tool_choice"):
        refused(client, model, "tool_choice", **asked)
        return

    [choice] = chat(client, model, **asked).choices

    [call, *_] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")


def test_beam_search(client, model):
    """A beam search returns n answers, the first at least as likely as the greedy one."""
    beams = {"extra_body": {"use_beam_search": True}, "n": 2, "max_tokens": 40}
    if not model.honours("use_beam_search"):
        refused(client, model, "use_beam_search", **beams)
        return

    first, second = chat(client, model, **beams).choices

    assert first.message.content
    assert first.message.content != second.message.content


def test_performance_metrics(client, model):
    """The engine's measurements of the request are in its usage, if the model reports them."""
    asked = {"extra_body": {"vllm_xargs": {"return_perf_metrics": True}}}
    if model.chosen.name != "tensorrt_llm":
        pytest.skip("only TensorRT-LLM's pipelines tell them")

    [measured] = chat(client, model, **asked).usage.performance_metrics

    assert measured["arrival_time_ns"] <= measured["last_token_time_ns"]


def test_cumulative_log_probability(client, model):
    """The LLM-API model reports it, if its usage is asked for it by name."""
    asked = {"extra_body": {"vllm_xargs": {"return_cumulative_logprob": True}}}
    if model.chosen.name != "llmapi":
        pytest.skip("only the LLM-API model has this input")

    [measured] = chat(client, model, **asked).usage.performance_metrics

    assert measured["cumulative_logprob"] < 0


# Fields whose values are passed on: a model honours them, or refuses them by name
TAKEN: dict[str, Any] = {
    "min_tokens": 1,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "include_stop_str_in_output": True,
    "stop_token_ids": [5],
    "ignore_eos": True,
    "bad_words": ["zebra"],
    "allowed_token_ids": [5, 6, 7],
    "skip_special_tokens": False,
    "return_token_ids": True,
    "top_logprobs": 2,
    "prompt_logprobs": 0,
    "priority": 1,
    "cache_salt": "salt",
}
# Fields that need another field
TAKEN_WITH: dict[str, dict[str, Any]] = {
    "include_stop_str_in_output": {"stop": ["zebra"]},
    "top_logprobs": {"logprobs": True},
}


def test_each_field_is_honoured_or_refused(client, model):
    """No field is dropped: a field that docs/backends.md marks "no" is a 400 that names it."""
    for field, value in TAKEN.items():
        company = TAKEN_WITH.get(field, {})
        asked = {"extra_body": {field: value, **company}, "max_tokens": 2}
        lacking = [each for each in (*company, field) if not model.honours(each)]
        if lacking:
            refused(client, model, lacking[0], **asked)
        else:
            assert chat(client, model, **asked).choices, field

    tested = {"stream", "max_tokens", "temperature", "seed", "stop", "logit_bias", "logprobs"}
    tested |= {"response_format", "tool_choice", "use_beam_search"}
    assert TAKEN.keys() | tested == FIELDS.keys()


def test_bad_words_and_min_tokens(client, model):
    """A word is excluded, and an answer does not end early."""
    if not (model.honours("bad_words") and model.honours("min_tokens")):
        pytest.skip("refused, as test_each_field_is_honoured_or_refused shows")
    word = text_of(client, model).split()[0]

    without = text_of(client, model, extra_body={"bad_words": [word]})
    longer = chat(client, model, extra_body={"min_tokens": 60}, max_tokens=64)

    assert word not in without
    assert longer.usage.completion_tokens >= 60


def test_prompt_longer_than_the_context(client, model):
    """It is refused before the model sees it."""
    card = client.models.retrieve(model.name)

    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, model, messages=[{"role": "user", "content": "a b " * card.max_model_len}])

    assert raised.value.code == "context_length_exceeded"


def test_disconnect_cancels_the_generation(client, model, gateway):
    """The model stops when the client disconnects, long before the end of its answer."""
    if not (model.honours("stream") and model.honours("ignore_eos")):
        pytest.skip("its answers are too short to tell")
    if model.name == "tensorrt_llm_bls":
        pytest.skip("NVIDIA's BLS model does not look whether it is cancelled")
    if model.name == "ensemble":
        pytest.skip("Triton passes a cancellation only to the steps that start after it")
    long = {"max_tokens": 1900, "extra_body": {"ignore_eos": True}}
    begun_s = _children_cpu_s(gateway.pid)
    text_of(client, model, **long)
    whole_s = _children_cpu_s(gateway.pid) - begun_s

    def disconnected_s() -> float:
        """CPU seconds of an answer whose client reads its first chunk."""
        begun_s = _children_cpu_s(gateway.pid)
        with chat(client, model, stream=True, **long) as told:
            next(iter(told))
        began = time.monotonic()
        while _cpu_s(gateway.pid, 0.4) > 0.2:
            assert time.monotonic() - began < 300
        return _children_cpu_s(gateway.pid) - begun_s

    # Of some: the model also generates while the client waits for the processor
    assert any(disconnected_s() < whole_s / 2 for _ in range(4))
    assert text_of(client, model)


def _cpu_s(pid: int, interval_s: float) -> float:
    """CPU seconds of a process' children in an interval."""
    before = _children_cpu_s(pid)
    time.sleep(interval_s)
    return _children_cpu_s(pid) - before


def _children_cpu_s(pid: int) -> float:
    children = psutil.Process(pid).children(recursive=True)
    return sum(sum(child.cpu_times()[:2]) for child in children)


def refused(client: openai.OpenAI, model: Model, param: str, **fields: Any) -> None:
    """The request is a 400 that names the field."""
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, model, **fields)
    assert raised.value.param == param
    assert raised.value.code == "unsupported_parameter"


def test_embeddings(client):
    """A Python model's vectors: as numbers and base64, for each form of input, with usage."""
    texts = ["hello there", "good day"]

    told = client.embeddings.create(model="own_vectors", input=texts, encoding_format="float")
    packed = client.embeddings.create(model="own_vectors", input=texts)
    short = client.embeddings.create(model="own_vectors", input=texts[0], dimensions=8)

    assert [len(each.embedding) for each in told.data] == [128, 128]
    assert packed.data[1].embedding == pytest.approx(told.data[1].embedding, abs=1e-6)
    assert len(short.data[0].embedding) == 8
    assert told.usage.prompt_tokens > 2


@pytest.mark.gpu
def test_gpu_tests_need_a_repository():
    """`pytest -m gpu` needs a repository; each of its models runs through the tests above."""
    if repository() is None:
        pytest.skip(f"{VARIABLE} names no model repository")

    assert any(repository().iterdir())
