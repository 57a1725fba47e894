"""One Triton model as the gateway serves it: its contract, tokenizer and templates in one place."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai_frontend.contracts.contract import Contract
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import CompletionDelta, GenerationRequest
from openai_frontend.prompting.pool import PromptPool
from openai_frontend.prompting.prompt import Prompt, PromptBuilder
from openai_frontend.triton import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told of a model."""

    name: str
    created: int  # Unix time at which it became ready
    owned_by: str
    ready: bool
    max_model_len: int | None = None  # prompt and answer together, in tokens
    root: str | None = None  # the model that it derives from, if it says
    description: str | None = None
    error: str | None = None  # why it cannot serve


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Prompts and generations of one model. Never knows of HTTP or of OpenAI's fields."""

    name: str
    created: int
    facts: Mapping[str, Any]  # what an in-process engine said at load; empty for other backends
    contract: Contract | None  # None where the model's tensors are no text generation
    prompts: PromptBuilder | None  # None where no tokenizer is known
    pool: PromptPool
    server: Server

    @property
    def max_model_len(self) -> int | None:
        """The context: prompt and answer together, in tokens. None where the model does not say."""
        return self.facts.get("max_model_len")

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below it. None where the model does not say."""
        return self.facts.get("vocab_size")

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Messages as the model's template renders them. Raises InvalidRequest where it refuses."""
        chat = partial(
            self._builder().chat,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return await self.pool.run(chat, characters=None if tools else _characters(messages))

    async def tokenize(self, text: str) -> Prompt:
        """A raw prompt, with the special tokens that the model's tokenizer adds by itself."""
        work = partial(self._builder().completion, text)
        return await self.pool.run(work, characters=len(text))

    def supports(self, field: str) -> bool:
        """True where the model can honour this field of GenerationRequest or SamplingParams."""
        return self.contract is not None and self.contract.supports(field)

    async def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Bursts of deltas, as they come; closing the generator ends the request in Triton."""
        contract = self.contract
        if contract is None:
            raise InvalidRequest(f"The model '{self.name}' does not generate text.", param="model")
        stream = self.server.infer(
            self.name,
            contract.encode(request),
            request_id=request.request_id,
            priority=request.priority,
            timeout_us=request.timeout_us,
        )
        decode = contract.decoder(request)
        try:
            async for responses in stream:
                yield [decode(response) for response in responses]
        finally:
            stream.cancel()

    def card(self) -> ModelCard:
        """The model as it is now: an engine may have died since it was loaded."""
        ready = self.server.model_is_ready(self.name)
        return ModelCard(
            name=self.name,
            created=self.created,
            owned_by=self.facts.get("owned_by", "triton"),
            ready=ready,
            max_model_len=self.max_model_len,
            description=self.facts.get("description"),
            error=None if ready else self.failure(),
        )

    def failure(self) -> str:
        """Why the model cannot serve, once it cannot."""
        return self.server.model_failure(self.name) or "it is not ready"

    def _builder(self) -> PromptBuilder:
        if self.prompts is None:
            raise ModelUnavailable(f"The model '{self.name}' has no tokenizer in this gateway.")
        return self.prompts


def _characters(messages: Sequence[Mapping[str, Any]]) -> int | None:
    """The length of all contents; None where one of them is not plain text."""
    contents = [message.get("content") for message in messages]
    if not all(isinstance(content, str) for content in contents):
        return None
    return sum(map(len, contents))  # type: ignore[arg-type]  # all are str
