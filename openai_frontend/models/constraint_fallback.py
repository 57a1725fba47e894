"""Generates with a looser constraint if the engine refuses the request's own.

An engine refuses a constraint before its first output, so nothing has been sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from openai_frontend.errors import ConstraintRefused, InferenceFailed, InvalidRequest
from openai_frontend.generation import CompletionDelta, ConstraintFallback, GenerationRequest

_CONSTRAINT = "structured_outputs"

Bursts = AsyncGenerator[list[CompletionDelta], None]


async def generate(
    begin: Callable[[GenerationRequest], Bursts],
    request: GenerationRequest,
    fallback: ConstraintFallback,
) -> Bursts:
    """Yield what `begin` does for the request, or for one with a looser constraint."""
    request = _with_current(request, fallback)
    repeated = False
    while True:
        begun = False
        try:
            async with aclosing(begin(request)) as bursts:
                async for burst in bursts:
                    begun = True
                    yield burst
            return
        except ConstraintRefused as refused:
            used = request.sampling_params.structured_outputs
            # Also after the answer has begun: later requests with the same constraint would fail.
            looser = await asyncio.to_thread(fallback.after, used, refused.param)
            if begun or not looser:
                raise
        except (InvalidRequest, InferenceFailed) as failed:
            # Other engines report a constraint that they refuse as a failure in words of their own.
            # A client can choose words, so they affect only this request.
            if begun or repeated or _names_another_field(failed, request):
                raise
            if (other := await asyncio.to_thread(fallback.for_any_engine)) is None:
                raise
            fallback, repeated = other, True
        request = _with_current(replace(request, kv_transfer=None), fallback)


def _names_another_field(
    failed: InvalidRequest | InferenceFailed, request: GenerationRequest
) -> bool:
    fields = tuple(
        field for name, field in request.field_names.items() if name.startswith(_CONSTRAINT)
    )
    return failed.param is not None and not failed.param.startswith(fields)


def _with_current(request: GenerationRequest, fallback: ConstraintFallback) -> GenerationRequest:
    if (current := fallback.current) is None:
        return request
    structured, names = current
    return replace(
        request,
        sampling_params=replace(request.sampling_params, structured_outputs=structured),
        field_names={**request.field_names, **names},
    )
