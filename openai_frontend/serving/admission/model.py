"""The model as serving uses it, by what the caller needs of it.

`models.served_model` implements and documents all of it. `Renders` and `Generates` describe the
model too: prompts are measured against its limits, and what runs is queued and charged by them.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from openai_frontend.generation import CompletionDelta, GenerationRequest
from openai_frontend.media.modalities import SpeechRequest, SpeechSupport
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.model_use import ModelUse
from openai_frontend.models.moderation import ModerationPolicy
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.prompting.chat_template import TemplateArguments
from openai_frontend.prompting.prompt import Prompt, TokenizeKwargs
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.concurrency_limit import LimitedModel

Waveform = AsyncGenerator[memoryview, None]  # its parts, of 32-bit floats
Work = GenerationRequest | EmbedRequest | ScorePairRequest | SpeechRequest


class Describes(LimitedModel, Protocol):
    """Name, facts, limits and supported fields of a model."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def tasks(self) -> frozenset[str]: ...
    @property
    def output_format(self) -> OutputFormat: ...
    @property
    def facts(self) -> ModelFacts: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def speech(self) -> SpeechSupport | None: ...
    def supports(self, field: str) -> bool: ...


class Renders(Describes, Protocol):
    """Templates and tokenizer of a model: texts to token ids and back, without the model itself."""

    @property
    def prompts(self) -> object | None: ...  # None without a tokenizer
    @property
    def reasoning_effort_map(self) -> Mapping[str, str]: ...
    def template_knows(self, name: str) -> bool: ...
    def template_accepts(self, name: str, value: str) -> bool: ...
    def fill_in_the_middle(self, prefix: str, suffix: str) -> str: ...
    def document_start(self) -> int | None: ...
    def token_bytes(self, token_id: int) -> bytes | None: ...
    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
    async def decode(self, token_ids: Sequence[int]) -> str: ...
    async def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]: ...
    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
        within_context: bool = True,
        extra_characters: int | None = None,
        media: Mapping[str, int] | None = None,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt: ...
    async def tokenize(
        self, text: str, *, param: str = "prompt", **how: Unpack[TokenizeKwargs]
    ) -> Prompt: ...
    async def tokenize_all(
        self, texts: Sequence[str], *, params: Sequence[str], **how: Unpack[TokenizeKwargs]
    ) -> list[Prompt]: ...
    async def decoder_prompt(self, start: str, previous: str = "") -> Prompt: ...
    async def tokenize_pair(
        self,
        first: str,
        second: str,
        *,
        params: tuple[str, str] = ("query", "documents"),
        truncation: Truncation | None = None,
    ) -> tuple[list[int], list[int]]: ...


class Generates(Describes, Protocol):
    """Runs requests in a model, which only a `Permit` does."""

    @property
    def use(self) -> ModelUse: ...
    def batch_limit(self, task: str, *, tokenized: bool) -> int: ...
    def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]: ...
    async def embed(self, requests: Sequence[EmbedRequest]) -> list[EmbeddingResult]: ...
    async def score(self, requests: Sequence[ScorePairRequest]) -> list[ScoreResult]: ...
    def speak(self, request: SpeechRequest) -> Waveform: ...


class ServingModel(Renders, Generates, Protocol):
    """A whole model, for requests that are rendered and then run."""

    @property
    def moderation(self) -> ModerationPolicy | None: ...
