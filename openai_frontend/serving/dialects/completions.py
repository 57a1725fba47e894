"""POST /v1/completions, independent of HTTP: OpenAI's requests and responses."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes, Renders, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.dialects.completion_output import CompletionText, CompletionWriter
from openai_frontend.serving.dialects.response_fields import (
    finish_reason,
    leading_fields,
    usage_fields,
    wire_prompt_logprobs,
)
from openai_frontend.serving.output.collect import CompletedChoice, collect
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
from openai_frontend.serving.output.logprobs import (
    NO_PROMPT_LOGPROBS,
    TextLogprobs,
    extended,
    logprobs_writer,
)
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_COMPLETIONS, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import Plans
from openai_frontend.serving.request.response_options import (
    NO_DEFAULTS,
    ResponseOptions,
    StreamDefaults,
    response_options,
)
from openai_frontend.serving.request.sampling import (
    UNLIMITED,
    Constraint,
    SamplingOptions,
    check_in_vocabulary,
    sampling_params,
    token_budget,
    truncation,
    unsupported,
)
from openai_frontend.serving.request.tools import NO_TOOLS
from schemas.completions import CompletionRequest
from schemas.logprobs import CompletionLogprobs

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class _Sampling(NamedTuple):
    """The constraint of the output, and the sampling parameters."""

    constraint: Constraint
    params: SamplingParams


@dataclass(slots=True, eq=False)
class _CompletionPlan:
    """The meaning of a request's fields, other than its prompt, for one model."""

    candidates: int  # of each prompt; see `_candidates`
    max_tokens: int | None
    options: ResponseOptions
    sampling: _Sampling | None = None  # None: not known, or it may differ by prompt


class Completions:
    """POST /v1/completions, independent of HTTP."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        admission: Admission,
        *,
        stream_defaults: StreamDefaults = NO_DEFAULTS,
    ) -> None:
        self._limits = limits
        self._stream_defaults = stream_defaults
        self._policy = policy
        self._admission = admission

    async def prepare(
        self, request: CompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """A job that is ready to run. `plans` belongs to all requests that
        differ only in their prompts.

        Raises for a full queue before anything is tokenized, and for what this model or server does
        not support.
        """
        self._admission.check(current_request(), model, request.priority or 0)
        return await self.build_job(request, model, plans)

    async def build_job(
        self, request: CompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """The job alone, whether the queue has room or not."""
        plan = (Plans() if plans is None else plans).plan(
            model, lambda: self._validate(request, model)
        )
        prompts = await self._tokenized(request, model, plan)
        id, n = new_id("cmpl"), plan.candidates
        wanted, params = plan.sampling or _sampling(request, model, plan)
        self._limits.check_output_tokens(n * len(prompts), plan.max_tokens)
        tokens = n * sum([len(prompt.token_ids) for prompt in prompts])
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        self._limits.check_prompt_logprobs(count_prompt_logprobs(params, tokens, model), param)
        requests: list[GenerationRequest] = []
        for at, prompt in enumerate(prompts):
            budget = _budget(prompt, plan.max_tokens, model)
            own = params if params.max_tokens == budget else replace(params, max_tokens=budget)
            first_id = request_id(id, at, prompts=len(prompts))
            first = first_request(first_id, prompt, own, request, plan.options, wanted)
            requests += choice_requests(first, n)
        return CompletionJob(
            id=id,
            model=model,
            context=current_request(),
            admission=self._admission,
            requests=requests,
            n=n,
            kept=request.n or 1,
            options=plan.options,
            echo=await _echo(request, prompts, model) if request.echo else (),
        )

    def _validate(self, request: CompletionRequest, model: Describes) -> _CompletionPlan:
        """Refuse what the server or the model does not support."""
        require_generation(model)
        self._policy.check(request, NEUTRAL_IN_COMPLETIONS)
        self._limits.check_n(request.n or 1)
        candidates = _candidates(request)
        self._limits.check_n(candidates, "best_of")
        _check_fields(request)
        check_request_fields(request, model, special_tokens=True)
        options = self._options(request, model)
        _check_model(request, options, model)
        return _CompletionPlan(candidates, _max_tokens(request, model), options)

    def _options(self, request: CompletionRequest, model: Describes) -> ResponseOptions:
        options = response_options(
            request, model, logprobs=request.logprobs, defaults=self._stream_defaults
        )
        return replace(options, echo_logprobs=bool(request.echo) and request.logprobs is not None)

    async def _tokenized(
        self, request: CompletionRequest, model: Renders, plan: _CompletionPlan
    ) -> list[Prompt]:
        """Check the prompts and tokenize them."""
        prompts = _prompts(request)
        self._limits.check_prompts(len(prompts), plan.candidates)
        if request.suffix and not _is_text(request.prompt):
            message = "Unsupported parameter: 'suffix' is only supported if the prompt is text."
            raise InvalidRequest(message, param="suffix", code="unsupported_parameter")
        cut = truncation(request, model, output_tokens=plan.max_tokens or 1)
        tokenized, tokens = [], 0
        for prompt in prompts:
            tokenized.append(await _tokenize(prompt, request, model, cut))
            tokens += len(tokenized[-1].token_ids)
            self._limits.check_prompt_tokens(tokens, "prompt")
            if len(prompts) > 1:
                await asyncio.sleep(0)  # a short prompt is tokenized on the event loop
        return tokenized


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of any of the four forms that a request may have."""
    prompt = request.prompt
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if isinstance(prompt[0], int):
        return [prompt]
    return [*prompt]


def _candidates(request: CompletionRequest) -> int:
    """Completions to generate for each prompt: with `best_of` possibly more than are returned."""
    if request.use_beam_search:
        return request.n or 1  # `best_of` is the beam width
    return request.best_of or request.n or 1


def _check_fields(request: CompletionRequest) -> None:
    """Check fields that depend on each other."""
    n, best_of = request.n or 1, request.best_of or request.n or 1
    if best_of < n:
        message = f"Invalid 'best_of': expected a value >= 'n' ({n}), but got {best_of} instead."
        raise InvalidRequest(message, param="best_of", code="integer_below_min_value")
    if best_of > n and request.stream:
        message = "Unsupported parameter: 'best_of' cannot be used with 'stream'."
        raise InvalidRequest(message, param="best_of", code="unsupported_parameter")


def _check_model(request: CompletionRequest, options: ResponseOptions, model: Describes) -> None:
    """Check fields that need log probabilities without requesting them by name."""
    if _candidates(request) > (request.n or 1) and not model.supports("logprobs"):
        raise unsupported("best_of")
    if options.echo_logprobs and not model.supports("prompt_logprobs"):
        raise unsupported("echo")


def _is_text(prompt: Any) -> bool:
    return prompt is None or isinstance(prompt, str) or isinstance(prompt[0], str)


async def _tokenize(
    prompt: str | list[int],
    request: CompletionRequest,
    model: Renders,
    cut: Truncation | None,
) -> Prompt:
    if not isinstance(prompt, str):
        if model.facts.vocab_size is not None:
            check_in_vocabulary(prompt, model.facts.vocab_size, "prompt")
        return Prompt(text=None, token_ids=prompt if cut is None else cut.kept(prompt))
    if model.prompts is None:
        return _untokenized(prompt, request, cut)
    text = model.fill_in_the_middle(prompt, request.suffix) if request.suffix else prompt
    special = request.add_special_tokens is not False
    tokenized = await model.tokenize(text, add_special_tokens=special, truncation=cut)
    return tokenized if tokenized.token_ids else _start_of_document(model)


def _untokenized(prompt: str, request: CompletionRequest, cut: Truncation | None) -> Prompt:
    """For a model without a tokenizer here: its backend reads the text."""
    needing = {
        "suffix": bool(request.suffix),
        "add_special_tokens": request.add_special_tokens is False,
        "truncate_prompt_tokens": cut is not None,
    }
    for name, needed in needing.items():
        if needed:
            raise unsupported(name)
    if not prompt:
        message = "Invalid 'prompt': empty string, and the model has no tokenizer here."
        raise InvalidRequest(message, param="prompt", code="empty_string")
    return Prompt(prompt, [])


def _start_of_document(model: Renders) -> Prompt:
    """OpenAI's meaning of an empty prompt."""
    start = model.document_start()
    if start is None:
        message = "Invalid 'prompt': empty string, and the model has no token to start from."
        raise InvalidRequest(message, param="prompt", code="empty_string")
    return Prompt(text=None, token_ids=[start])


def _max_tokens(request: CompletionRequest, model: Describes) -> int | None:
    if request.max_tokens == UNLIMITED:
        return model.max_output_tokens
    if request.max_tokens is not None:
        return request.max_tokens
    return min(DEFAULT_MAX_TOKENS, model.max_output_tokens or DEFAULT_MAX_TOKENS)


def _budget(prompt: Prompt, max_tokens: int | None, model: Describes) -> int | None:
    return token_budget(
        max_tokens,
        prompt_tokens=len(prompt.token_ids),
        context=model.facts.max_model_len,
        param="prompt",
    )


def _sampling(request: CompletionRequest, model: Describes, plan: _CompletionPlan) -> _Sampling:
    """Keeps the result in the plan, unless a plug-in may look at the prompt."""
    output_constraint = constraint(request, NO_TOOLS, PLAIN, reasoning_open=None)
    ranked = plan.candidates > (request.n or 1)
    echoed = request.logprobs if plan.options.echo_logprobs else None
    counts = [each for each in (request.prompt_logprobs, echoed) if each is not None]
    options = SamplingOptions(
        max_tokens=plan.max_tokens,
        logprobs=0 if ranked and request.logprobs is None else request.logprobs,
        prompt_logprobs=(-1 if -1 in counts else max(counts)) if counts else None,
        constraint=output_constraint,
    )
    sampling = _Sampling(output_constraint, sampling_params(request, options, model))
    if not plugin.installed():
        plan.sampling = sampling
    return sampling


async def _echo(request: CompletionRequest, prompts: list[Prompt], model: Renders) -> list[str]:
    """The text before each prompt's completions: its own, without what `suffix` adds."""
    texts = []
    for text, prompt in zip(_prompts(request), prompts, strict=True):
        if isinstance(text, str) and (text == "" or prompt.text is not None):
            texts.append(text)
        else:  # token ids, or truncated
            texts.append(await model.decode(prompt.token_ids))
            await asyncio.sleep(0)  # thousands of short prompts are decoded on the event loop
    return texts


def chunks(job: CompletionJob) -> StreamDriver:
    """The response as a stream of chunks."""
    return StreamDriver(job, CompletionWriter(job))


async def complete(job: CompletionJob) -> dict[str, Any]:
    """The whole response: the fields of Completion."""
    choices, usage = await collect(job, CompletionText)
    if job.options.echo_logprobs and not all(choice.prompt_logprobs for choice in choices):
        raise InferenceFailed(NO_PROMPT_LOGPROBS)
    likeliest = _likeliest(job, choices)
    fields = leading_fields(job)
    return {
        "id": fields["id"],
        "object": "text_completion",
        **fields,
        "choices": [_choice(job, at, index, choices[index]) for at, index in enumerate(likeliest)],
        "usage": usage_fields(usage),
    }


def _likeliest(job: CompletionJob, choices: Sequence[CompletedChoice[CompletionText]]) -> list[int]:
    """Indexes of the choices to return for each prompt, by mean log probability of their tokens."""
    n, count = job.n, job.kept or job.n
    indexes = range(len(choices))
    if count == n:
        return list(indexes)
    groups = [indexes[start : start + n] for start in indexes[::n]]
    ranked = [sorted(group, key=lambda each: -choices[each].mean_logprob()) for group in groups]
    return [index for group in ranked for index in group[:count]]


def _choice(
    job: CompletionJob, at: int, index: int, choice: CompletedChoice[CompletionText]
) -> dict[str, Any]:
    """The fields of CompletionChoice."""
    options = job.options
    fields: dict[str, Any] = {}
    if options.token_ids:
        fields["token_ids"] = choice.token_ids
        fields["prompt_token_ids"] = job.prompt_token_ids(index)
    if options.prompt_logprobs:
        fields["prompt_logprobs"] = wire_prompt_logprobs(choice.prompt_logprobs)
    return {
        "index": at,
        "text": job.echo_text(index) + choice.output.text,
        "logprobs": None if options.logprobs is None else _logprobs(job, index, choice),
        "finish_reason": finish_reason(choice.end, job.tools),
        **fields,
        **(choice.logits_fields() if choice.logits else {}),
    }


def _logprobs(
    job: CompletionJob, index: int, choice: CompletedChoice[CompletionText]
) -> CompletionLogprobs:
    writer = logprobs_writer(job.model, job.options, TextLogprobs)
    if not job.options.echo_logprobs:
        return writer.tokens(choice.logprobs)
    ids = job.prompt_token_ids(index)
    echoed = writer.prompt(job.echo_text(index), ids, choice.prompt_logprobs)
    return extended(echoed, writer.tokens(choice.logprobs))
