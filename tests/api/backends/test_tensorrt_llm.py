"""Features of TensorRT-LLM's pipelines only, through the real core, ensemble and BLS."""

import base64
import math
from typing import Any

import openai
import pytest

from tests.api.backends.models import Model, params

TOKENS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(
        "model", [each for each in params() if each.id in ("ensemble", "tensorrt_llm_bls")]
    ),
]


def completion(client: openai.OpenAI, model: Model, **fields: Any) -> Any:
    return client.completions.create(
        model=model.name, prompt="Triton is", max_tokens=TOKENS, temperature=0, **fields
    )


def test_beam_search(client: openai.OpenAI, model: Model) -> None:
    """Two different answers of one request, both counted."""

    whole = completion(client, model, n=2, extra_body={"use_beam_search": True})
    assert len({choice.text for choice in whole.choices}) == 2
    assert whole.usage.completion_tokens == 2 * TOKENS


def test_metrics(client: openai.OpenAI, model: Model) -> None:
    """They are in the usage if the request asks for them."""

    asked = {"vllm_xargs": {"return_perf_metrics": True}}
    usage = completion(client, model, extra_body=asked).usage.model_dump()
    (metrics,) = usage["performance_metrics"]
    assert metrics["last_token_time_ns"] >= metrics["first_token_time_ns"] > 0


def test_logits(client: openai.OpenAI, model: Model) -> None:
    """A tensor with the datatype and shape given next to it."""

    asked = {"vllm_xargs": {"return_generation_logits": True}}
    choice = completion(client, model, extra_body=asked).choices[0].model_dump()
    logits = choice["generation_logits"]
    size = 4 * math.prod(logits["shape"])
    assert (logits["datatype"], len(base64.b64decode(logits["data"]))) == ("FP32", size)
    assert TOKENS in logits["shape"]


def test_biased_token(client: openai.OpenAI, model: Model) -> None:
    """It is the only generated token, and BOS is absent."""

    text = completion(client, model, logit_bias={"300": 100}).choices[0].text
    once = text[: len(text) // TOKENS]
    assert once
    assert text == once * TOKENS


def test_log_probabilities(client: openai.OpenAI, model: Model) -> None:
    """One for each token, with its text."""

    choice = completion(client, model, logprobs=0).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.token_logprobs) == TOKENS
