"""Entries of /v1/models: the fields that clients of other servers read."""

from typing import Any

import pytest

from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.model_card import ModelCard
from openai_frontend.routers.anthropic_models import anthropic_model
from openai_frontend.routers.described_model import MediaLimits, model_of
from openai_frontend.serving.request.audio import AudioLimits
from openai_frontend.serving.request.images import ImageLimits

LIMITS = MediaLimits(images=ImageLimits(), audio=AudioLimits())


def described(*capabilities: str, ready: bool = True, **fields: Any) -> dict[str, Any]:
    card = ModelCard(
        name="m", created=1, ready=ready, capabilities=frozenset(capabilities), **fields
    )
    return model_of(card, LIMITS).model_dump()


@pytest.mark.parametrize("context", [4096, None])
def test_context_has_the_names_of_each_client(context):
    entry = described(facts=ModelFacts(max_model_len=context))
    names = ("max_model_len", "context_length", "context_window")

    assert [entry[name] for name in names] == [context] * 3
    assert entry["meta"] == {"n_ctx_train": context}


@pytest.mark.parametrize("limit", [256, None])
def test_output_limit(limit):
    """Anthropic's form has the context in place of null."""
    facts = ModelFacts(max_model_len=4096)
    card = ModelCard(name="m", created=1, ready=True, facts=facts, max_output_tokens=limit)

    assert model_of(card, LIMITS).max_output_tokens == limit
    assert anthropic_model(card).max_tokens == (limit or 4096)


@pytest.mark.parametrize(
    ("capabilities", "inputs", "outputs"),
    [
        ({"chat", "completions"}, ["text"], ["text"]),
        ({"chat", "images", "audio"}, ["text", "image", "audio"], ["text"]),
        ({"embeddings", "rerank"}, ["text"], []),
        ({"transcription"}, ["audio"], ["text"]),
        ({"speech"}, ["text"], ["audio"]),
        ((), [], []),
    ],
)
def test_modalities_follow_the_capabilities(capabilities, inputs, outputs):
    entry = described(*capabilities)

    assert (entry["input_modalities"], entry["output_modalities"]) == (inputs, outputs)


def test_status():
    """A ready model is loaded; another one has its reason."""
    assert described()["status"] == {"value": "loaded"}
    assert described(ready=False)["status"] == {"value": "failed"}
    assert described(ready=False, absent="loading")["status"] == {"value": "loading"}
