"""A vLLM logits processor that allows only tokens made of given characters."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

NAME = "characters"


class CharacterMask(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM has no types
    """Set in `model.json`: `"logits_processors": ["character_mask:CharacterMask"]`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """Store the text of each token; masks are created on demand."""
        super().__init__(vllm_config, device, is_pin_memory)
        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        self._device = device
        self._end = tokenizer.eos_token_id
        size = vllm_config.model_config.get_vocab_size()
        self._texts = [tokenizer.decode([token]) for token in range(min(size, len(tokenizer)))]
        self._size = size
        self._forbidden = lru_cache(16)(self._mask)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Reject invalid arguments; the client gets the message."""
        given = sampling_params.extra_args or {}
        if given.get("logits_processor") == NAME and not isinstance(given.get("characters"), str):
            raise ValueError("extra_args: 'characters' must be a string")

    def is_argmax_invariant(self) -> bool:
        """The most likely token may be forbidden."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """Return the function that masks this request's logits, or None if it names no mask."""
        given = params.extra_args or {}
        if given.get("logits_processor") != NAME:
            return None
        forbidden = self._forbidden(frozenset(given["characters"]))

        def masked(_output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            return logits.masked_fill_(forbidden, float("-inf"))

        return masked

    def _mask(self, characters: frozenset[str]) -> torch.Tensor:
        allowed = [bool(text) and characters.issuperset(text) for text in self._texts]
        allowed += [False] * (self._size - len(allowed))
        allowed[self._end] = True
        return ~torch.tensor(allowed, device=self._device)
