"""Which model a request uses, and the error if that is ambiguous."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from openai_frontend.admission.queue import ANONYMOUS, QueueKey
from openai_frontend.errors import InvalidRequest, ModelNotFound
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.tasks import Capability
from openai_frontend.serving.admission.model_lookup import MAX_LISTED, find_model

Capabilities = frozenset[str]


@dataclass
class Models:
    """Cards with these names; `get` returns the name."""

    names: list[str]
    alias_of: dict[str, str] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    capabilities: dict[str, Capabilities] = field(default_factory=dict)

    async def ensure_loaded(self, name: str, queue_key: QueueKey = ANONYMOUS) -> None:
        """Every model counts as loaded."""

    def unloaded_capabilities(self, name: str) -> None:
        """None is unloaded."""

    def get(self, name: str) -> Any:
        if name not in self.names:
            raise ModelNotFound(f"The model '{name}' does not exist.", param="model")
        return name

    def card(self, name: str) -> ModelCard:
        return ModelCard(
            name=name,
            created=1,
            ready=True,
            alias_of=self.alias_of.get(name),
            parent=self.parents.get(name),
            capabilities=self.capabilities.get(name, frozenset()),
        )

    def cards(self) -> list[ModelCard]:
        return [self.card(name) for name in self.names]


async def found(
    models: Models,
    name: str | None = None,
    capability: Capability | None = None,
    *,
    may_list: bool = True,
) -> Any:
    return await find_model(models, name, capability, may_list=lambda: may_list, load_as=ANONYMOUS)


ONE_MODEL = [
    (Models(["a"]), "a"),
    (Models(["alias", "model", "model@1", "model@2"], dict.fromkeys(
        ["alias", "model@1", "model@2"], "model")), "model"),
    (Models(["alias", "other-alias"], {"alias": "model", "other-alias": "model"}), "alias"),
    (Models(["base", "base:french"], parents={"base:french": "base"}), "base"),
    (Models(["base:french"], parents={"base:french": "base"}), "base:french"),
]  # fmt: skip


@pytest.mark.parametrize("name", [None, ""])
@pytest.mark.parametrize(("models", "expected"), ONE_MODEL)
async def test_request_without_a_model_uses_the_only_one(models, expected, name):
    """The model may have any number of names, versions and adapters."""
    assert await found(models, name) == expected


CHAT: Capabilities = frozenset({"chat", "completions"})
EMBEDS: Capabilities = frozenset({"embeddings", "rerank"})
TOKENS: Capabilities = frozenset({"token_embeddings"})
RANKS: Capabilities = frozenset({"rerank"})
CLASSIFIES: Capabilities = frozenset({"classification"})
MODERATES: Capabilities = frozenset({"classification", "moderation"})

ONE_FOR_THE_TASK: list[tuple[dict[str, Capabilities], Capability | None, str]] = [
    ({"talks": CHAT, "embeds": EMBEDS}, "chat", "talks"),
    ({"talks": CHAT, "embeds": EMBEDS}, "completions", "talks"),
    ({"talks": CHAT, "embeds": EMBEDS}, "embeddings", "embeds"),
    ({"late": TOKENS, "embeds": EMBEDS}, "embeddings", "embeds"),
    ({"late": TOKENS, "talks": CHAT}, "embeddings", "late"),
    ({"talks": CHAT, "embeds": EMBEDS}, "rerank", "embeds"),
    ({"talks": CHAT, "judge": RANKS, "e": EMBEDS, "f": EMBEDS}, "rerank", "judge"),
    ({"talks": CHAT}, "embeddings", "talks"),
    ({"guard": MODERATES, "unloaded": frozenset(), "c": CLASSIFIES}, "moderation", "guard"),
]


@pytest.mark.parametrize(("capabilities", "task", "expected"), ONE_FOR_THE_TASK)
async def test_request_without_a_model_uses_the_only_one_for_the_task(capabilities, task, expected):
    """The endpoint determines the task. For ranking, a cross-encoder is preferred to embedding
    models.
    """
    models = Models(list(capabilities), capabilities=capabilities)

    assert await found(models, None, task) == expected


@pytest.mark.parametrize(
    ("capabilities", "task"),
    [
        ({"a": CHAT, "b": CHAT, "e": EMBEDS}, "chat"),
        ({"a": RANKS, "b": RANKS, "e": EMBEDS}, "rerank"),
        ({"a": CHAT, "b": frozenset()}, "chat"),  # not loaded: it may be a chat model
    ],
)
async def test_ambiguous_request_lists_the_models_for_the_task(capabilities, task):
    models = Models(list(capabilities), capabilities=capabilities)

    with pytest.raises(InvalidRequest, match=r"available models: 'a', 'b'\."):
        await found(models, None, task)


async def test_request_uses_the_model_that_it_names():
    assert await found(Models(["a", "b"]), "b") == "b"


@pytest.mark.parametrize(
    ("names", "may_list", "told"),
    [
        (["a", "b"], True, "Name one of the available models: 'a', 'b'."),
        (["a", "b"], False, "Several models are available."),
        ([], True, "No model is available."),
    ],
)
async def test_ambiguous_request_is_a_400_that_lists_the_models(names, may_list, told):
    """Only callers that may list models see the list."""
    with pytest.raises(InvalidRequest) as refused:
        await found(Models(names), may_list=may_list)

    assert refused.value.message == f"Missing required parameter: 'model'. {told}"
    assert (refused.value.param, refused.value.code) == ("model", "missing_required_parameter")


@pytest.mark.parametrize(
    ("name", "may_list", "told"),
    [
        ("lama-8b", True, " Did you mean 'llama-8b'? Available models: 'llama-8b', 'qwen'."),
        ("gpt-4o", True, " Available models: 'llama-8b', 'qwen'."),
        ("lama-8b", False, ""),
    ],
)
async def test_unknown_model_is_a_404_with_suggestions(name, may_list, told):
    """Only callers that may list models see the closest name and the list."""
    with pytest.raises(ModelNotFound) as refused:
        await found(Models(["llama-8b", "qwen"]), name, may_list=may_list)

    assert refused.value.message == f"The model '{name}' does not exist.{told}"
    assert refused.value.param == "model"


async def test_error_lists_a_few_models_and_the_number_of_others():
    names = [f"model-{number:03}" for number in range(MAX_LISTED + 5)]

    with pytest.raises(ModelNotFound) as refused:
        await found(Models(names), "x" * 100_000)

    message = refused.value.message.removeprefix(f"The model '{'x' * 100_000}' does not exist.")
    assert message.count("'model-") == MAX_LISTED
    assert message.endswith("and 5 more (GET /v1/models lists all).")
