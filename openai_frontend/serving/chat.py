"""Chat completions: from a request to a job for the model, from the job to the response."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.constraints.grammar import is_slow_to_build, prepare_constraint
from openai_frontend.serving.output.collect import CompletedChoice, collect
from openai_frontend.serving.output.completion_job import (
    CompletionJob,
    check_request_fields,
    choice_requests,
    count_prompt_logprobs,
    first_request,
    new_id,
    require_generation,
)
from openai_frontend.serving.output.logprobs import ChatLogprobs, logprobs_writer
from openai_frontend.serving.output.output_parsing import (
    ParserConfig,
    keep_special_tokens,
    parser_config,
    prompt_text,
    with_parser_needs,
)
from openai_frontend.serving.output.response_fields import (
    finish_reason,
    leading_fields,
    usage_fields,
    wire_prompt_logprobs,
)
from openai_frontend.serving.output.stream import ChunkStream
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_CHAT, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import NO_MEDIA, MediaReader, tokens_with_media
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.request_body import Plans
from openai_frontend.serving.request.response_options import (
    NO_DEFAULTS,
    StreamDefaults,
    response_options,
)
from openai_frontend.serving.request.sampling import (
    UNLIMITED,
    Constraint,
    SamplingOptions,
    clamp_max_tokens,
    sampling_params,
    token_budget,
    truncation,
    unsupported,
)
from openai_frontend.serving.request.template_inputs import (
    TemplateVariables,
    prefilled_text,
    template_messages,
    template_variables,
)
from openai_frontend.serving.request.tools import Tools, parse_tools, require_tool_support
from openai_frontend.sse import CHAT_COMPLETION_CHUNK
from schemas.chat_completions import ChatCompletionRequest


@dataclass(slots=True, eq=False)
class _ChatPlan:
    """The meaning of a request's fields, other than its messages, for one model."""

    tools: Tools
    variables: TemplateVariables
    extra_characters: int | None  # see `ServedModel.render_chat`
    # Whether the prompt ends within reasoning -> the constraint; empty if they differ by message
    constraints: dict[bool | None, Constraint] = field(default_factory=dict)
    # Maximum output, and whether the prompt ends within reasoning -> the sampling parameters
    params: dict[tuple[int | None, bool | None], SamplingParams] = field(default_factory=dict)


_MAX_PARAMS = 64  # for each plan: the maximum output may depend on the prompt's length
# Characters of a structural tag in a plan. It may repeat a definition of the schema, so it can be
# 60 times as long as the request; such a tag is built again each time.
_MAX_KEPT_TAG = 64 * 1024


class _Constrained(NamedTuple):
    """The constraint of the output, and how it is parsed."""

    constraint: Constraint
    parser: ParserConfig | None  # None: the model's text is the content
    reasoning_open: bool | None  # whether the prompt ends within reasoning


class ChatCompletions:
    """POST /v1/chat/completions, independent of HTTP."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        admission: Admission,
        *,
        media: MediaReader | None = None,  # None: with the default limits
        stream_defaults: StreamDefaults = NO_DEFAULTS,
    ) -> None:
        self._limits = limits
        self._media = media or MediaReader()
        self._stream_defaults = stream_defaults
        self._policy = policy
        self._admission = admission

    async def prepare(
        self, request: ChatCompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """A job that is ready to run. `plans` belongs to all requests that
        differ only in their messages.

        Raises for a full queue before anything is rendered, and for what this model or server does
        not support.
        """
        self._admission.check(current_request(), model, request.priority or 0)
        return await self.build_job(request, model, plans)

    async def build_job(
        self, request: ChatCompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """The job alone, whether the queue has room or not.

        Each phase needs the result of the one before. Refusals that are cheap come first; the
        prompt's length decides the budget, and its end whether the output begins with reasoning.
        """
        plan = self._plan(request, model, Plans() if plans is None else plans)
        prompt = await self._render(request, model, plan)
        max_tokens = self._budget(request, model, prompt)
        constrained = await _constrain(request, model, plan, prompt)
        job = self._sample(request, model, prompt, max_tokens, constrained, plan)
        if plan.variables.adjusted:
            job.adjusted = plan.variables.adjusted
        return job

    def _plan(self, request: ChatCompletionRequest, model: ServingModel, plans: Plans) -> _ChatPlan:
        """The plan of earlier requests to this model, or a new one."""
        self._limits.check_messages(len(request.messages))
        plan = plans.plan(model, lambda: self._validate(request, model))
        if request.continue_final_message:
            prefilled_text(request.messages, param="continue_final_message")
        return plan

    def _validate(self, request: ChatCompletionRequest, model: ServingModel) -> _ChatPlan:
        """Refuse what the server or the model does not support."""
        require_generation(model)
        self._policy.check(request, NEUTRAL_IN_CHAT)
        self._limits.check_n(request.n or 1)
        _check_fields(request)
        tools = parse_tools(request, self._policy)
        if tools.in_use:
            require_tool_support(tools, model.output_format, shown=model.template_knows("tools"))
        variables = template_variables(request, model, self._policy)
        check_request_fields(request, model, special_tokens=False)
        return _ChatPlan(tools, variables, _extra_characters(request, tools, variables))

    async def _render(
        self, request: ChatCompletionRequest, model: ServingModel, plan: _ChatPlan
    ) -> Prompt:
        """Render the conversation with the model's chat template and tokenize it."""
        parts: list[MediaPart] = []
        messages = template_messages(request.messages, self._policy, parts)
        media = NO_MEDIA
        if parts:
            media = await self._media.read(parts, model)
            media.check_choices(request.n or 1)
        prompt = await model.render_chat(
            messages,
            media=media.counts if parts else None,
            tools=plan.tools.for_template,
            documents=request.documents,
            add_generation_prompt=_add_generation_prompt(request),
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=plan.variables.values,
            add_special_tokens=bool(request.add_special_tokens),
            truncation=truncation(request, model, output_tokens=_max_tokens(request) or 1),
            extra_characters=plan.extra_characters,
        )
        if parts:
            prompt = media.beside(prompt)
        self._limits.check_prompt_tokens(_prompt_tokens(prompt, model), "messages")
        return prompt

    def _budget(
        self, request: ChatCompletionRequest, model: ServingModel, prompt: Prompt
    ) -> int | None:
        """The maximum output length in tokens; None if neither request nor model limits it."""
        max_tokens = token_budget(
            _max_tokens(request),
            prompt_tokens=_prompt_tokens(prompt, model),
            context=model.max_model_len,
            param="messages",
        )
        max_tokens = clamp_max_tokens(max_tokens, model)
        self._limits.check_output_tokens(request.n or 1, max_tokens)
        return max_tokens

    def _sample(
        self,
        request: ChatCompletionRequest,
        model: ServingModel,
        prompt: Prompt,
        max_tokens: int | None,
        constrained: _Constrained,
        plan: _ChatPlan,
    ) -> CompletionJob:
        """Translate sampling fields, and make one generation request for each choice."""
        id, n, parser = new_id("chatcmpl"), request.n or 1, constrained.parser
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        options = response_options(
            request,
            model,
            logprobs=logprobs,
            defaults=self._stream_defaults,
            parsed=parser is not None,
        )
        key = max_tokens, constrained.reasoning_open
        params = plan.params.get(key)
        if params is None:
            params = _sampling_params(request, model, max_tokens, constrained, logprobs)
            kept = constrained.reasoning_open in plan.constraints
            if kept and len(plan.params) < _MAX_PARAMS:
                plan.params[key] = params
        entries = count_prompt_logprobs(params, len(prompt.token_ids), model)
        self._limits.check_prompt_logprobs(entries, "prompt_logprobs")
        first = first_request(id, prompt, params, request, options, constrained.constraint)
        if parser is not None:
            first = with_parser_needs(first, parser, model)
        return CompletionJob(
            id=id,
            model=model,
            context=current_request(),
            admission=self._admission,
            requests=_choices(first, n),
            n=n,
            options=options,
            echo=[prefilled_text(request.messages)] if request.echo else [],
            parser=parser,
            tools=plan.tools,
        )


def _prompt_tokens(prompt: Prompt, model: ServingModel) -> int:
    has_media = prompt.images or prompt.audio_files
    return tokens_with_media(prompt, model) if has_media else len(prompt.token_ids)


def _extra_characters(
    request: ChatCompletionRequest, tools: Tools, variables: TemplateVariables
) -> int | None:
    """None if they cannot be written as JSON in an instant."""
    if not (tools.for_template or request.documents or variables.values):
        return 0
    try:
        return len(orjson.dumps([tools.for_template, request.documents, variables.values]))
    except orjson.JSONEncodeError:  # a number of more than 64 bits, or too many levels
        return None


def _sampling_params(
    request: ChatCompletionRequest,
    model: ServingModel,
    max_tokens: int | None,
    constrained: _Constrained,
    logprobs: int | None,
) -> SamplingParams:
    parsed = constrained.parser is not None
    sampling = SamplingOptions(
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        constraint=constrained.constraint,
        special_tokens=parsed and keep_special_tokens(model),
    )
    params = sampling_params(request, sampling, model)
    if params.beam_width is not None and parsed:
        raise unsupported("use_beam_search")  # parsers read one sequence after the other
    return params


async def _constrain(
    request: ChatCompletionRequest, model: ServingModel, plan: _ChatPlan, prompt: Prompt
) -> _Constrained:
    """Decide what the output must match, and how to parse it."""
    tools, variables = plan.tools, plan.variables.values
    parsed = tools.in_use or model.output_format.reasoning  # else the text is the content
    continued = bool(request.continue_final_message)
    text = None
    if parsed:
        text = prefilled_text(request.messages) if continued else prompt_text(prompt, model)
    reasoning_open = model.output_format.reasoning_open(
        text, continued=continued, variables=variables
    )
    wanted = plan.constraints.get(reasoning_open)
    if wanted is None:
        build = prepare_constraint(
            request,
            tools,
            model.output_format,
            reasoning_open=reasoning_open,
            supports_tags=model.supports("structured_outputs.structural_tag"),
        )
        wanted = await asyncio.to_thread(build) if is_slow_to_build(tools) else build()
        tag = None if wanted.structured is None else wanted.structured.structural_tag
        short = tag is None or len(tag) <= _MAX_KEPT_TAG
        if short and not plugin.installed():  # a plug-in may look at the messages
            wanted = plan.constraints.setdefault(reasoning_open, wanted)
    if not parsed:
        return _Constrained(wanted, None, reasoning_open)
    parser = parser_config(tools, wanted, text, model, variables, continued=continued)
    if request.include_reasoning is False:
        parser = replace(parser, include_reasoning=False)
    return _Constrained(wanted, parser, reasoning_open)


def _choices(first: GenerationRequest, n: int) -> list[GenerationRequest]:
    """One request per choice, or one beam search for all. Only the first asks for the prompt's log
    probabilities.
    """
    params = first.sampling_params
    if n == 1 or params.prompt_logprobs is None or params.beam_width is not None:
        return choice_requests(first, n)
    others = replace(first, sampling_params=replace(params, prompt_logprobs=None))
    return [first, *choice_requests(others, n)[1:]]


def _check_fields(request: ChatCompletionRequest) -> None:
    """Check fields that depend on each other."""
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(request, name) == 0:
            wanted = "Expected a value >= 1, or -1 for no limit, but got 0 instead."
            message = f"Invalid '{name}': integer below minimum value. {wanted}"
            raise InvalidRequest(message, param=name, code="integer_below_min_value")
    if request.modalities is not None and "audio" in request.modalities:
        message = "Invalid value: 'audio'. Supported values are: 'text'."
        raise InvalidRequest(message, param="modalities", code="unsupported_value")
    if request.continue_final_message and request.add_generation_prompt:
        message = "Use either 'continue_final_message' or 'add_generation_prompt'."
        raise InvalidRequest(message, param="continue_final_message")
    if request.top_logprobs is not None and not request.logprobs:
        message = "Invalid 'top_logprobs': it requires 'logprobs' to be true."
        raise InvalidRequest(message, param="top_logprobs")


def _add_generation_prompt(request: ChatCompletionRequest) -> bool:
    if request.add_generation_prompt is None:
        return not request.continue_final_message
    return request.add_generation_prompt


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    max_tokens = request.max_completion_tokens or request.max_tokens
    return None if max_tokens == UNLIMITED else max_tokens


def chunks(job: CompletionJob) -> ChunkStream:
    """The response as a stream of chunks."""
    return ChunkStream(job, CHAT_COMPLETION_CHUNK, ChatLogprobs)


async def complete(job: CompletionJob) -> dict[str, Any]:
    """The whole response: the fields of ChatCompletion.

    Not a ChatCompletion: building and dumping that model takes 8 us, this 1 us.
    """
    choices, usage = await collect(job)
    fields = leading_fields(job)
    return {
        "id": fields["id"],
        "object": "chat.completion",
        **fields,
        "choices": [_choice(job, index, choice) for index, choice in enumerate(choices)],
        "usage": usage_fields(usage),
        **_extra_fields(job, choices[0]),
    }


def _choice(job: CompletionJob, index: int, choice: CompletedChoice) -> dict[str, Any]:
    """The fields of ChatCompletionChoice."""
    ids = {"token_ids": choice.token_ids} if job.options.token_ids else {}
    logprobs = None
    if job.options.logprobs is not None:
        logprobs = logprobs_writer(job.model, job.options, ChatLogprobs).tokens(choice.logprobs)
    return {
        "index": index,
        "message": _message(choice),
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.end, job.tools),
        **ids,
        **choice.logits_fields(),
    }


def _message(choice: CompletedChoice) -> dict[str, Any]:
    """The fields of ChatCompletionMessage."""
    if choice.message is not None:
        return choice.message.fields(choice.text)
    return {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []}


def _extra_fields(job: CompletionJob, first: CompletedChoice) -> dict[str, Any]:
    """Fields that the response has only on request."""
    options = job.options
    fields: dict[str, Any] = {}
    if options.metadata is not None:
        fields["metadata"] = options.metadata
    if options.prompt_logprobs:
        fields["prompt_logprobs"] = wire_prompt_logprobs(first.prompt_logprobs)
    if options.token_ids:
        fields["prompt_token_ids"] = job.prompt_token_ids(0)
    return fields
