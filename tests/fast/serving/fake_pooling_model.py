"""A served model without Triton that computes embeddings and scores."""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.errors import ContextLengthExceeded
from openai_frontend.pooling import (
    MAX_BATCH_INPUTS,
    EmbeddingResult,
    EmbedRequest,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from tests.fast.serving.fake_model import FakeModel, Prompts


class FakePoolingModel(FakeModel):
    """Each character is a token. The vector counts a text's "a", "b" and other characters."""

    def __init__(
        self,
        *,
        tasks: Sequence[str] = ("embed",),
        dimensions: int | None = 3,
        matryoshka: bool | None = False,
        max_model_len: int | None = 10,
        vectors: Mapping[str, Sequence[float]] | None = None,  # text -> its vector
        failing: str | None = None,  # the text at which the model fails
        hanging: bool = False,  # the other texts never get an answer
        has_tokenizer: bool = True,
        takes_batches: bool = True,
        iterations: int = 1,  # of the event loop, for each text
    ) -> None:
        super().__init__(max_model_len=max_model_len)
        self.tasks = frozenset(tasks)
        self.dimensions = dimensions
        self.matryoshka = matryoshka
        self.prompts = Prompts() if has_tokenizer else None
        self.embedded: list[EmbedRequest] = []
        self.scored: list[ScorePairRequest] = []
        self._takes_batches = takes_batches
        self.batches: list[int] = []  # inputs of each
        self.most_at_once = 0
        self._vectors = dict(vectors or {})
        self._failing = failing
        self._hanging = hanging
        self._iterations = iterations

    def batch_limit(self, task: str, *, tokenized: bool) -> int:
        return MAX_BATCH_INPUTS if self._takes_batches and tokenized else 1

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        truncation: Truncation | None = None,
        within_context: bool = True,
        param: str = "prompt",
    ) -> Prompt:
        ids = [ord(letter) for letter in text] + [1] * add_special_tokens
        if truncation is not None and len(ids) > truncation.tokens:
            return Prompt(None, truncation.kept(ids))
        if within_context and self.max_model_len is not None and len(ids) > self.max_model_len:
            raise ContextLengthExceeded(f"resulted in {len(ids)} tokens", param=param)
        return Prompt(text, ids)

    async def tokenize_all(
        self, texts: Sequence[str], *, params: Sequence[str], **options: Any
    ) -> list[Prompt]:
        named = zip(texts, params, strict=True)
        return [await self.tokenize(text, param=param, **options) for text, param in named]

    async def tokenize_pair(
        self,
        first: str,
        second: str,
        *,
        params: tuple[str, str] = ("query", "documents"),
        truncation: Truncation | None = None,
    ) -> tuple[list[int], list[int]]:
        if truncation is not None:
            second = second[: max(0, truncation.tokens - len(first))]
        token_ids = [ord(letter) for letter in first + second]
        if self.max_model_len is not None and len(token_ids) > self.max_model_len:
            raise ContextLengthExceeded(f"resulted in {len(token_ids)} tokens", param=params[1])
        return token_ids, [0] * len(first) + [1] * len(second)

    async def embed(self, requests: Sequence[EmbedRequest]) -> list[EmbeddingResult]:
        self.batches.append(len(requests))
        self.embedded += requests
        return await asyncio.gather(*map(self._embed, requests))

    async def _embed(self, request: EmbedRequest) -> EmbeddingResult:
        token_ids = request.prompt_token_ids or ()
        text = request.prompt
        if text is None:
            text = "".join(map(chr, token_ids))
        await self._work(text)
        size = request.dimensions or self.dimensions or 3
        vector = self._vectors.get(text, [text.count("a"), text.count("b"), len(text)])[:size]
        return EmbeddingResult(memoryview(struct.pack(f"<{len(vector)}f", *vector)), len(token_ids))

    async def score(self, requests: Sequence[ScorePairRequest]) -> list[ScoreResult]:
        """The number of letters of the document that are in the query."""
        self.batches.append(len(requests))
        self.scored += requests
        return await asyncio.gather(*map(self._score, requests))

    async def _score(self, request: ScorePairRequest) -> ScoreResult:
        sides: tuple[list[str], list[str]] = ([], [])
        types = request.token_type_ids or ()
        for token_id, side in zip(request.prompt_token_ids, types, strict=True):
            sides[side].append(chr(token_id))
        query, document = sides
        await self._work("".join(document))
        points = sum(letter in query for letter in document)
        return ScoreResult(float(points), len(request.prompt_token_ids))

    async def _work(self, text: str) -> None:
        """A few iterations of the event loop, counted as open while they run."""
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        self.begun.set()
        self.ended.clear()
        try:
            for _ in range(self._iterations):
                await asyncio.sleep(0)
            if text == self._failing:
                raise ValueError("the model failed")
            if self._hanging:
                await asyncio.Event().wait()
        finally:
            self.open -= 1
            if self.open == 0:
                self.ended.set()
