"""Generates with a looser constraint if the engine refuses the request's own.

An engine refuses a constraint before its first output, so nothing has been sent.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import CompletionDelta, ConstraintFallback, GenerationRequest

_CONSTRAINT = "structured_outputs"
_WORDS = re.compile("grammar|schema|regex|guide|structur", re.IGNORECASE)

Bursts = AsyncGenerator[list[CompletionDelta], None]


async def generate(
    begin: Callable[[GenerationRequest], Bursts],
    request: GenerationRequest,
    fallback: ConstraintFallback,
) -> Bursts:
    """Yield what `begin` does for the request, or for one with a looser constraint."""
    request = _with_current(request, fallback)
    while True:
        begun = False
        try:
            async with aclosing(begin(request)) as bursts:
                async for burst in bursts:
                    begun = True
                    yield burst
            return
        except (InvalidRequest, InferenceFailed) as refused:
            if begun or not _about_constraint(refused, request):
                raise
            if isinstance(refused, InferenceFailed):
                fallback = fallback.unshared()
            if not await _loosened(request, refused, fallback):
                raise
        request = _with_current(replace(request, kv_transfer=None), fallback)


def _about_constraint(
    refused: InvalidRequest | InferenceFailed, request: GenerationRequest
) -> bool:
    """NVIDIA's backends report a constraint that they refuse as a failure, in their own words. A
    client can choose those words, so they have an effect on this request only.
    """
    if isinstance(refused, InferenceFailed):
        return _WORDS.search(refused.message) is not None
    fields = tuple(
        field for name, field in request.field_names.items() if name.startswith(_CONSTRAINT)
    )
    return refused.param is None or refused.param.startswith(fields)


async def _loosened(
    request: GenerationRequest,
    refused: InvalidRequest | InferenceFailed,
    fallback: ConstraintFallback,
) -> bool:
    """Builds the grammar in a thread, which takes 20 ms for the longest."""
    used = request.sampling_params.structured_outputs
    return await asyncio.to_thread(fallback.after, used, refused.param)


def _with_current(request: GenerationRequest, fallback: ConstraintFallback) -> GenerationRequest:
    if (current := fallback.current) is None:
        return request
    structured, names = current
    return replace(
        request,
        sampling_params=replace(request.sampling_params, structured_outputs=structured),
        field_names={**request.field_names, **names},
    )
