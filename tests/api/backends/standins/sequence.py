"""One answer of the small Llama, one token per step, by the rules of TensorRT-LLM's executor."""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from tests.api.backends.standins.llama import Adapter, Array, Cache, Llama, log_softmax, softmax


class Guide(Protocol):
    """Restricts an answer."""

    def restrict(self, logits: Array) -> None:
        """Sets the logits of tokens that must not follow to minus infinity."""

    def take(self, token_id: int) -> None:
        """Advances by this token."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters: greedy unless top_k or top_p is set."""

    max_tokens: int
    min_tokens: int = 0
    end_id: int = -1  # no token has this id
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    bias: Array | None = None  # one number per token
    stop_words: Many[Many[int]] = ()  # token by token; they stay in the answer
    bad_words: Many[Many[int]] = ()


class Sequence:
    """A prompt and its generated tokens; `step` adds one."""

    def __init__(
        self,
        llama: Llama,
        prompt: Many[int],
        sampling: Sampling,
        *,
        adapter: Adapter | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.token_ids: list[int] = []
        self.log_probabilities: list[float] = []
        self.prompt_logits: Array | None = None
        self.logits: list[Array] = []
        self.finish_reason: Literal["stop", "length"] | None = None
        self._llama = llama
        self._adapter = adapter
        self._guide = guide
        self._cache = Cache()
        self._random = np.random.default_rng(sampling.seed)

    def step(self) -> int | None:
        """The next token, or None if the answer ends without one."""
        raw = self._next_logits()
        chosen = self._chosen(self._adjusted(raw))
        if chosen == self.sampling.end_id:
            self.finish_reason = "stop"
            return None
        self.logits.append(raw)
        self.log_probabilities.append(float(log_softmax(raw)[chosen]))
        self.token_ids.append(chosen)
        if self._guide is not None:
            self._guide.take(chosen)
        if any(_ends_with(self.token_ids, word) for word in self.sampling.stop_words):
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.finish_reason = "length"
        return chosen

    def _next_logits(self) -> Array:
        if self.prompt_logits is None:
            self.prompt_logits = self._llama.logits(self.prompt, self._cache, self._adapter)
            first: Array = self.prompt_logits[-1].copy()
            return first
        last: Array = self._llama.logits(self.token_ids[-1:], self._cache, self._adapter)[-1]
        return last

    def _adjusted(self, raw: Array) -> Array:
        logits, sampling = raw.copy(), self.sampling
        if sampling.bias is not None:
            logits += sampling.bias
        self._penalize(logits)
        if self._guide is not None:
            self._guide.restrict(logits)
        if sampling.end_id >= 0 and len(self.token_ids) < sampling.min_tokens:
            logits[sampling.end_id] = -np.inf
        for word in sampling.bad_words:
            if word and _ends_with(self.token_ids, word[:-1]):
                logits[word[-1]] = -np.inf
        return logits

    def _penalize(self, logits: Array) -> None:
        """The repetition penalty includes the prompt; OpenAI's two count only the answer."""
        sampling = self.sampling
        if sampling.repetition_penalty != 1.0:
            seen = np.unique(self.prompt + self.token_ids)
            scale = np.where(logits[seen] > 0, 1 / sampling.repetition_penalty, 1)
            scale = np.where(logits[seen] < 0, sampling.repetition_penalty, scale)
            logits[seen] *= scale
        if self.token_ids and (sampling.presence_penalty or sampling.frequency_penalty):
            said, counts = np.unique(self.token_ids, return_counts=True)
            logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * counts

    def _chosen(self, logits: Array) -> int:
        sampling = self.sampling
        greedy = sampling.temperature == 0 or sampling.top_k == 1
        if greedy or (not sampling.top_k and not sampling.top_p):
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if sampling.top_k:
            order = order[: sampling.top_k]
        shares = softmax(logits[order] / np.float32(sampling.temperature)).astype(np.float64)
        if 0 < sampling.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(shares), sampling.top_p)) + 1
            order, shares = order[:kept], shares[:kept]
        return int(self._random.choice(order, p=shares / shares.sum()))


def _ends_with(token_ids: Many[int], word: Many[int]) -> bool:
    return list(token_ids[len(token_ids) - len(word) :]) == list(word)


def beams(llama: Llama, prompt: Many[int], sampling: Sampling, width: int) -> list[Sequence]:
    """The most likely answers of a search of this width, best first."""
    cache = Cache()
    scores = log_softmax(llama.logits(prompt, cache)[-1])
    frontier: list[tuple[list[int], float, Cache, Array]] = [([], 0.0, cache, scores)]
    ended: list[tuple[list[int], float, bool]] = []
    for _ in range(sampling.max_tokens):
        grown = [
            ([*ids, int(token)], total + float(scores[token]), cache)
            for ids, total, cache, scores in frontier
            for token in np.argsort(-scores, kind="stable")[: width + 1]
        ]
        grown.sort(key=lambda each: -each[1])
        frontier = []
        for ids, total, cache in grown:
            if ids[-1] == sampling.end_id:
                ended.append((ids[:-1], total, True))
            elif len(frontier) < width:
                own = cache.copy()
                frontier.append((ids, total, own, log_softmax(llama.logits(ids[-1:], own)[-1])))
        if len(ended) >= width:
            break
    ended += [(ids, total, False) for ids, total, _, _ in frontier]
    ended.sort(key=lambda each: -each[1] / (len(each[0]) + 1))
    return [_told(llama, prompt, sampling, ids, stopped) for ids, _, stopped in ended[:width]]


def _told(
    llama: Llama, prompt: Many[int], sampling: Sampling, ids: list[int], stopped: bool
) -> Sequence:
    """A finished answer with its log probabilities."""
    told = Sequence(llama, prompt, sampling)
    logits = llama.logits([*prompt, *ids], Cache())
    told.prompt_logits = logits[: len(prompt)]
    told.logits = list(logits[len(prompt) - 1 : len(prompt) - 1 + len(ids)])
    told.token_ids = ids
    told.log_probabilities = [
        float(log_softmax(raw)[token]) for raw, token in zip(told.logits, ids, strict=True)
    ]
    told.finish_reason = "stop" if stopped else "length"
    return told
