"""A served model without Triton that answers with the bursts given by a test."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from copy import copy
from typing import Any

from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.generation import CompletionDelta, FinishReason, GenerationRequest, TokenCounts
from openai_frontend.media.modalities import AudioSupport, ImageSupport, SpeechSupport
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.model_use import ModelUses
from openai_frontend.parsing.output_format import PLAIN, OutputFormat
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.chat import ChatCompletions
from openai_frontend.serving.output.collect import Collector
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits

Bursts = Sequence[Sequence[CompletionDelta]]


def last(
    text: str = "", reason: FinishReason = "stop", *, prompt: int = 3, completion: int = 2
) -> CompletionDelta:
    """The last delta of an answer, with its token counts."""
    return CompletionDelta(text, finish_reason=reason, counts=TokenCounts(prompt, completion, 1))


ANSWER: Bursts = ([CompletionDelta("Hel")], [CompletionDelta("lo"), last()])


class _Stream:
    received = 0


class Prompts:
    """Of one model."""


class FakeModel:
    """Has the methods of ServedModel. Each character of the prompt is a token."""

    name = model_name = "fake"
    fingerprint = "abc"
    tasks = frozenset({"generate"})
    concurrency_limits = NO_LIMITS
    max_output_tokens: int | None = None
    images: ImageSupport | None = None
    audio: AudioSupport | None = None
    speech: SpeechSupport | None = None
    reasoning_effort_map: Mapping[str, str] = {}
    dimensions: int | None = None
    matryoshka: bool | None = None

    def __init__(
        self,
        bursts: Bursts = ANSWER,
        *,
        max_model_len: int | None = None,
        unsupported: frozenset[str] = frozenset(),
        supports: Callable[[str], bool] | None = None,  # a contract's; None: all but `unsupported`
        failure: BaseException | None = None,  # raised after the bursts
        endless: bool = False,  # never ends after the bursts
        answers: Sequence[CompletionDelta] = (),  # answers to the 2nd, 3rd, ... request
        document_start: int | None = 2,  # the token that precedes a text
        template_variables: frozenset[str] = frozenset(),  # of its chat template
        template_values: frozenset[str] | None = None,  # efforts it accepts; None: any
        output_format: OutputFormat = PLAIN,
    ) -> None:
        self.prompts: object | None = Prompts()  # each fake is a model of its own
        self.output_format = output_format
        self.max_model_len = max_model_len
        self.vocab_size: int | None = 300
        self.requests: list[GenerationRequest] = []
        self.rendered: list[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]] = []
        self.use = ModelUses()["fake"]
        self.open = 0  # running generations
        self.begun = asyncio.Event()  # set when a generation starts
        self.ended = asyncio.Event()  # set when no generation runs
        self._bursts = bursts
        self._unsupported = unsupported
        self._supports = supports
        self._failure = failure
        self._endless = endless
        self._answers = answers
        self._document_start = document_start
        self._template_variables = template_variables
        self._template_values = template_values

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            dimensions=self.dimensions,
            matryoshka=self.matryoshka,
            images=self.images,
            audio=self.audio,
        )

    def supports(self, field: str) -> bool:
        if self._supports is not None:
            return self._supports(field)
        return field not in self._unsupported

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        self.rendered.append((messages, options))
        text = "".join(str(message.get("content") or "") for message in messages)
        return Prompt(text, [ord(letter) for letter in text])

    def template_knows(self, name: str) -> bool:
        return name in self._template_variables

    def template_accepts(self, name: str, value: str) -> bool:
        return self._template_values is None or value in self._template_values

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, truncation: Truncation | None = None
    ) -> Prompt:
        ids = [ord(letter) for letter in text]
        return Prompt(text, ids) if truncation is None else Prompt(None, truncation.kept(ids))

    def document_start(self) -> int | None:
        return self._document_start

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))

    async def decode(self, token_ids: Sequence[int]) -> str:
        return self.detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        return f"{prefix}_{suffix}"

    def _answer(self, request: int) -> Bursts:
        return [[self._answers[request - 1]]] if self._answers and request else self._bursts

    async def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        self.requests.append(request)
        self.open += 1
        self.begun.set()
        self.ended.clear()
        stream = _Stream()
        request.usage.follow(stream)
        try:
            for burst in self._answer(len(self.requests) - 1):
                await asyncio.sleep(0)
                stream.received += len(burst)
                request.usage.add(burst)
                yield list(burst)
            if self._failure is not None:
                raise copy(self._failure)  # whose traceback refers to the whole response
            if self._endless:
                await asyncio.Event().wait()
        finally:
            self.open -= 1
            if self.open == 0:
                self.ended.set()


def feed(
    reader: StreamDriver | Collector[Any],
    job: CompletionJob,
    choice: int,
    deltas: Sequence[CompletionDelta],
) -> Any:
    """Feed a burst as it comes from a served model, which counts its tokens."""
    job.requests[choice].usage.add(deltas)
    return reader.feed(choice, deltas)


def admission(slots: int = 99) -> Admission:
    """Admission to a server with so many slots."""
    return Admission(ConcurrencyLimiter(slots))


def chat_completions(
    limits: InferenceLimits | None = None,
    policy: FieldPolicy | None = None,
    admitted: Admission | None = None,
    **options: Any,
) -> ChatCompletions:
    """The chat completions of a server that refuses unknown fields."""
    conversations = Conversations(limits or InferenceLimits(), admitted or admission(), **options)
    return ChatCompletions(conversations, policy or FieldPolicy("reject"))
