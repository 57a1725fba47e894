"""Bounds what vLLM's detokenizers decode for each token, see `_core.BoundedDecodeStream`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from openai_frontend.triton._core import BoundedDecodeStream

# What comes before the answer, where decoding begins: enough for spaces and split characters.
# vLLM takes the whole prompt, 20 ms of the event loop for 100,000 tokens.
_PROMPT_END = 8


def bound(detokenizer: Any, prompt_token_ids: Sequence[int] | None) -> None:
    """Let a detokenizer's steps cost the same however many tokens complete no character."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    if not isinstance(detokenizer, FastIncrementalDetokenizer):
        return
    import tokenizers.decoders

    skip = detokenizer.skip_special_tokens
    tokenizer = detokenizer.tokenizer
    stream = BoundedDecodeStream(
        partial(tokenizers.decoders.DecodeStream, skip_special_tokens=skip),
        partial(tokenizer.decode, skip_special_tokens=skip),
    )
    for token_id in (prompt_token_ids or ())[-_PROMPT_END:]:
        stream.step(tokenizer, token_id)
    detokenizer.stream = stream
