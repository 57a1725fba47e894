"""Completions: request to answer, answer to Completion or chunks. No HTTP, no bytes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.constraints import Constraint, constraint
from openai_frontend.serving.output.completion_job import (
    CompletionJob,
    check_request_fields,
    choice_requests,
    count_prompt_logprobs,
    first_request,
    new_id,
    request_id,
    require_generation,
)
from openai_frontend.serving.output.endings import (
    ChunkStream,
    CompletedChoice,
    collect,
    logprobs_writer,
)
from openai_frontend.serving.output.logprobs import TextLogprobs, extended
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_COMPLETIONS, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.response_options import (
    NO_DEFAULTS,
    ResponseOptions,
    StreamDefaults,
    details,
    wire_prompt_logprobs,
)
from openai_frontend.serving.request.sampling import (
    UNLIMITED,
    SamplingOptions,
    check_in_vocabulary,
    sampling_params,
    token_budget,
    unsupported,
)
from openai_frontend.serving.request.tools import NO_TOOLS
from openai_frontend.serving.request.truncation import truncation
from openai_frontend.sse import COMPLETION_CHUNK
from schemas.completions import CompletionRequest
from schemas.logprobs import CompletionLogprobs

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class Completions:
    """What POST /v1/completions means, whatever carries it."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        limiter: ConcurrencyLimiter,
        *,
        stream_defaults: StreamDefaults = NO_DEFAULTS,
    ) -> None:
        self._limits = limits
        self._stream_defaults = stream_defaults
        self._policy = policy
        self._limiter = limiter

    async def prepare(self, request: CompletionRequest, model: ServedModel) -> CompletionJob:
        """The answer, not yet begun; raises for what this model or server cannot honour."""
        self._limiter.slots_for(model).check(model.turn(request.priority or 0))
        answer = await self.render(request, model)
        model.reserve(answer.requests[0])
        return answer

    async def render(self, request: CompletionRequest, model: ServedModel) -> CompletionJob:
        """The same answer for those who only look at its requests: takes no place in a queue and
        none of the caller's tokens.
        """
        prompts = await self._tokenized(request, model)
        check_request_fields(request, model, special_tokens=True)
        id, n, told = new_id("cmpl"), _candidates(request), self._details(request, model)
        _check_model(request, told, model)
        held = constraint(request, NO_TOOLS, PLAIN, reasoning_open=None)
        params = sampling_params(request, _asked(request, told, held, model), model)
        self._limits.check_answer_tokens(n * len(prompts), _max_tokens(request, model))
        tokens = n * sum(len(prompt.token_ids) for prompt in prompts)
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        self._limits.check_prompt_logprobs(count_prompt_logprobs(params, tokens, model), param)
        requests: list[GenerationRequest] = []
        for at, prompt in enumerate(prompts):
            room = _room(prompt, request, model)
            own = params if params.max_tokens == room else replace(params, max_tokens=room)
            first_id = request_id(id, at, prompts=len(prompts))
            first = first_request(first_id, prompt, own, request, told, held)
            requests += choice_requests(first, n)
        return CompletionJob(
            id=id,
            model=model,
            slots=self._limiter.slots_for(model),
            requests=requests,
            n=n,
            kept=request.n or 1,
            details=told,
            echo=_echo(request, prompts, model),
        )

    def _details(self, request: CompletionRequest, model: ServedModel) -> ResponseOptions:
        told = details(request, model, logprobs=request.logprobs, defaults=self._stream_defaults)
        return replace(told, echo_logprobs=bool(request.echo) and request.logprobs is not None)

    async def _tokenized(self, request: CompletionRequest, model: ServedModel) -> list[Prompt]:
        """What the model reads; raises for fields that this model or server cannot honour."""
        require_generation(model)
        prompts = _prompts(request)
        self._policy.check(request, NEUTRAL_IN_COMPLETIONS)
        self._limits.check_n(request.n or 1)
        self._limits.check_n(_candidates(request), "best_of")
        self._limits.check_prompts(len(prompts), _candidates(request))
        _check(request)
        tokenized, tokens = [], 0
        for prompt in prompts:
            tokenized.append(await _tokenize(prompt, request, model))
            tokens += len(tokenized[-1].token_ids)
            self._limits.check_prompt_tokens(tokens, "prompt")
            if len(prompts) > 1:
                await asyncio.sleep(0)  # a short prompt is tokenized on the event loop
        return tokenized


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """A list of prompts, whichever of the four forms the request has."""
    prompt = request.prompt
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if isinstance(prompt[0], int):
        return [prompt]
    return [*prompt]


def _candidates(request: CompletionRequest) -> int:
    """Answers that are generated for each prompt; `best_of` may be more than are kept."""
    if request.use_beam_search:
        return request.n or 1  # `best_of` is how many are followed, of which the best are told
    return request.best_of or request.n or 1


def _check(request: CompletionRequest) -> None:
    """What fields demand of one another."""
    n, best_of = request.n or 1, request.best_of or request.n or 1
    if best_of < n:
        message = f"Invalid 'best_of': expected a value >= 'n' ({n}), but got {best_of} instead."
        raise InvalidRequest(message, param="best_of", code="integer_below_min_value")
    if best_of > n and request.stream:
        message = "Unsupported parameter: 'best_of' cannot be used with 'stream'."
        raise InvalidRequest(message, param="best_of", code="unsupported_parameter")
    if request.suffix and not _is_text(request.prompt):
        message = "Unsupported parameter: 'suffix' is only supported where the prompt is text."
        raise InvalidRequest(message, param="suffix", code="unsupported_parameter")


def _check_model(request: CompletionRequest, told: ResponseOptions, model: ServedModel) -> None:
    """What needs log probabilities that were not asked for by their own name."""
    if _candidates(request) > (request.n or 1) and not model.supports("logprobs"):
        raise unsupported("best_of")
    if told.echo_logprobs and not model.supports("prompt_logprobs"):
        raise unsupported("echo")


def _is_text(prompt: Any) -> bool:
    return prompt is None or isinstance(prompt, str) or isinstance(prompt[0], str)


async def _tokenize(
    prompt: str | list[int], request: CompletionRequest, model: ServedModel
) -> Prompt:
    cut = truncation(request, model, answer_tokens=_max_tokens(request, model) or 1)
    if not isinstance(prompt, str):
        if model.vocab_size is not None:
            check_in_vocabulary(prompt, model.vocab_size, "prompt")
        return Prompt(text=None, token_ids=prompt if cut is None else cut.kept(prompt))
    text = model.fill_in_the_middle(prompt, request.suffix) if request.suffix else prompt
    special = request.add_special_tokens is not False
    tokenized = await model.tokenize(text, add_special_tokens=special, truncation=cut)
    return tokenized if tokenized.token_ids else _start_of_document(model)


def _start_of_document(model: ServedModel) -> Prompt:
    """OpenAI's meaning of no prompt at all."""
    start = model.document_start()
    if start is None:
        message = "Invalid 'prompt': empty string, and the model has no token to begin from."
        raise InvalidRequest(message, param="prompt", code="empty_string")
    return Prompt(text=None, token_ids=[start])


def _max_tokens(request: CompletionRequest, model: ServedModel) -> int | None:
    if request.max_tokens == UNLIMITED:
        return model.max_output_tokens
    if request.max_tokens is not None:
        return request.max_tokens
    return min(DEFAULT_MAX_TOKENS, model.max_output_tokens or DEFAULT_MAX_TOKENS)


def _room(prompt: Prompt, request: CompletionRequest, model: ServedModel) -> int | None:
    return token_budget(
        _max_tokens(request, model),
        prompt_tokens=len(prompt.token_ids),
        context=model.max_model_len,
        param="prompt",
    )


def _asked(
    request: CompletionRequest, told: ResponseOptions, held: Constraint, model: ServedModel
) -> SamplingOptions:
    ranked = _candidates(request) > (request.n or 1)
    logprobs = 0 if ranked and request.logprobs is None else request.logprobs
    of_prompt = [request.prompt_logprobs, request.logprobs if told.echo_logprobs else None]
    wanted = [each for each in of_prompt if each is not None]
    return SamplingOptions(
        max_tokens=_max_tokens(request, model),
        logprobs=logprobs,
        prompt_logprobs=(-1 if -1 in wanted else max(wanted)) if wanted else None,
        held=held,
    )


def _echo(request: CompletionRequest, prompts: list[Prompt], model: ServedModel) -> list[str]:
    """What stands before each prompt's answers: its own text, without what `suffix` adds."""
    if not request.echo:
        return []
    pairs = zip(_prompts(request), prompts, strict=True)
    return [_echoed(given, prompt, model) for given, prompt in pairs]


def _echoed(given: str | list[int], prompt: Prompt, model: ServedModel) -> str:
    whole = given == "" or prompt.text is not None  # else it was token ids, or it was cut
    return given if isinstance(given, str) and whole else model.detokenize(prompt.token_ids)


def chunks(answer: CompletionJob) -> ChunkStream:
    """The ending of a streamed answer."""
    return ChunkStream(answer, COMPLETION_CHUNK, TextLogprobs)


async def complete(answer: CompletionJob) -> dict[str, Any]:
    """The ending of a whole answer: the fields of Completion, ready to be written."""
    wholes, usage = await collect(answer)
    kept = _likeliest(answer, wholes)
    fields = answer.fields()
    return {
        "id": fields["id"],
        "object": "text_completion",
        **fields,
        "choices": [_choice(answer, at, index, wholes[index]) for at, index in enumerate(kept)],
        "usage": usage.model_dump(),
    }


def _likeliest(answer: CompletionJob, wholes: Sequence[CompletedChoice]) -> list[int]:
    """The choices that are kept of each prompt's, by the mean log probability of their tokens."""
    n, kept = answer.n, answer.kept or answer.n
    everyone = range(len(wholes))
    if kept == n:
        return list(everyone)
    groups = [everyone[start : start + n] for start in everyone[::n]]
    ranked = [sorted(group, key=lambda each: -wholes[each].likelihood()) for group in groups]
    return [index for group in ranked for index in group[:kept]]


def _choice(answer: CompletionJob, at: int, index: int, whole: CompletedChoice) -> dict[str, Any]:
    """The fields of CompletionChoice."""
    told = answer.details
    fields: dict[str, Any] = {}
    if told.token_ids:
        fields["token_ids"] = whole.token_ids
        fields["prompt_token_ids"] = answer.prompt_token_ids(index)
    if told.prompt_logprobs:
        fields["prompt_logprobs"] = wire_prompt_logprobs(whole.prompt_logprobs)
    return {
        "index": at,
        "text": whole.text,
        "logprobs": None if told.logprobs is None else _logprobs(answer, index, whole),
        "finish_reason": whole.finish_reason,
        **fields,
        **whole.more(),
    }


def _logprobs(answer: CompletionJob, index: int, whole: CompletedChoice) -> CompletionLogprobs:
    writer = logprobs_writer(answer, TextLogprobs)
    if not answer.details.echo_logprobs:
        return writer.tokens(whole.logprobs)
    ids = answer.prompt_token_ids(index)
    echoed = writer.prompt(answer.echoed(index), ids, whole.prompt_logprobs)
    return extended(echoed, writer.tokens(whole.logprobs))
