"""A served model without Triton: it answers with the bursts that a test gives it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from openai_frontend.generation import CompletionDelta, FinishReason, GenerationRequest, TokenCounts
from openai_frontend.prompting.prompt import Prompt

Bursts = Sequence[Sequence[CompletionDelta]]


def last(
    text: str = "", reason: FinishReason = "stop", *, prompt: int = 3, completion: int = 2
) -> CompletionDelta:
    """The last delta of an answer, with its counts."""
    return CompletionDelta(text, finish_reason=reason, counts=TokenCounts(prompt, completion, 1))


ANSWER: Bursts = ([CompletionDelta("Hel")], [CompletionDelta("lo"), last()])


class FakeModel:
    """Has the methods of ServedModel; a token is a character of the prompt."""

    name = "fake"

    def __init__(
        self,
        bursts: Bursts = ANSWER,
        *,
        max_model_len: int | None = None,
        unsupported: frozenset[str] = frozenset(),
        failure: BaseException | None = None,  # raised after the bursts
        endless: bool = False,  # waits for ever after the bursts
    ) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = 300
        self.requests: list[GenerationRequest] = []
        self.rendered: list[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]] = []
        self.open = 0  # generations that have begun and not ended
        self.begun = asyncio.Event()  # some generation has begun
        self.ended = asyncio.Event()  # all that had begun have ended
        self._bursts = bursts
        self._unsupported = unsupported
        self._failure = failure
        self._endless = endless

    def supports(self, field: str) -> bool:
        return field not in self._unsupported

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        self.rendered.append((messages, options))
        text = "".join(str(message["content"]) for message in messages)
        return Prompt(text, [ord(letter) for letter in text])

    async def tokenize(self, text: str) -> Prompt:
        return Prompt(text, [ord(letter) for letter in text])

    async def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        self.requests.append(request)
        self.open += 1
        self.begun.set()
        self.ended.clear()
        try:
            for burst in self._bursts:
                await asyncio.sleep(0)
                yield list(burst)
            if self._failure is not None:
                raise self._failure
            if self._endless:
                await asyncio.Event().wait()
        finally:
            self.open -= 1
            if self.open == 0:
                self.ended.set()
