"""The tasks of models: the contract that performs each, and what it enables in the API."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from openai_frontend.contracts.select import SelectedContracts

# Abilities of a model that a path can need: members of `schemas.models.Capabilities`
Capability = Literal[
    "chat",
    "completions",
    "embeddings",
    "sparse_embeddings",
    "rerank",
    "classification",
    "transcription",
    "speech",
    "moderation",
]


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of work that models do for requests."""

    name: str  # the first four are the values of `ModelFacts.tasks`
    performed: Callable[[SelectedContracts], bool]  # whether one of the contracts performs it
    capabilities: frozenset[str]  # of every model with this task


def _of_tokens(name: str, contracts: SelectedContracts) -> bool:
    return name in contracts.token_tasks


TASKS = (
    Task(
        "generate",
        lambda each: each.generation is not None and each.transcription is None,
        frozenset({"completions"}),
    ),
    Task(
        "embed",
        lambda each: each.embedding is not None,
        frozenset({"embeddings", "rerank"}),
    ),
    Task("score", lambda each: each.score is not None, frozenset({"rerank"})),
    Task(
        "classify",
        lambda each: each.classification is not None,
        frozenset({"classification"}),
    ),
    Task(
        "sparse_embed",
        lambda each: each.sparse is not None,
        frozenset({"sparse_embeddings"}),
    ),
    Task("token_embed", partial(_of_tokens, "token_embed"), frozenset({"token_embeddings"})),
    Task("token_classify", partial(_of_tokens, "token_classify"), frozenset()),
    Task(
        "transcribe",
        lambda each: each.transcription is not None,
        frozenset({"transcription"}),
    ),
    Task("speak", lambda each: each.speech is not None, frozenset({"speech"})),
)
# Capabilities that a model cannot have together with those of another set. Pooling models share
# one set: a classifier may also score, and BGE-M3 makes several kinds of vectors.
_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"chat", "completions"}),
    frozenset({"transcription"}),
    frozenset({"speech"}),
    frozenset(
        {
            "embeddings",
            "sparse_embeddings",
            "token_embeddings",
            "rerank",
            "classification",
            "moderation",
        }
    ),
)
_CAPABILITIES = {task.name: task.capabilities for task in TASKS}


def tasks_of(contracts: SelectedContracts) -> frozenset[str]:
    """The names of the tasks that the contracts perform."""
    return frozenset(task.name for task in TASKS if task.performed(contracts))


def capabilities_of(tasks: frozenset[str]) -> frozenset[str]:
    """The capabilities that the tasks give every model."""
    return frozenset().union(*(_CAPABILITIES[name] for name in tasks))


def exclude(capabilities: frozenset[str], capability: Capability) -> bool:
    """Whether a model with these capabilities, maybe not all that it has, cannot have this one.
    `moderation` is never left out: only an option gives it.
    """
    if capability == "moderation":
        return capability not in capabilities
    kinds = [kind for kind in _KINDS if kind & capabilities]
    return bool(kinds) and not any(capability in kind for kind in kinds)
