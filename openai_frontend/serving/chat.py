"""Chat completions: request to answer, answer to ChatCompletion or chunks. No HTTP, no bytes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.served_model import ServedModel
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
    require_generation,
)
from openai_frontend.serving.output.endings import (
    ChunkStream,
    CompletedChoice,
    collect,
    logprobs_writer,
)
from openai_frontend.serving.output.logprobs import ChatLogprobs
from openai_frontend.serving.output.output_parsing import ParserConfig
from openai_frontend.serving.output.reader_choice import (
    keep_special_tokens,
    needs_parser,
    parser_config,
    prompt_text,
    with_parser_needs,
)
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_CHAT, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.messages import prefilled_text, template_messages
from openai_frontend.serving.request.response_options import (
    NO_DEFAULTS,
    StreamDefaults,
    details,
    wire_prompt_logprobs,
)
from openai_frontend.serving.request.sampling import (
    UNLIMITED,
    SamplingOptions,
    clamp_max_tokens,
    sampling_params,
    token_budget,
    unsupported,
)
from openai_frontend.serving.request.template_variables import template_variables
from openai_frontend.serving.request.tools import Tools, parse_tools, require_tool_support
from openai_frontend.serving.request.truncation import truncation
from openai_frontend.sse import CHAT_COMPLETION_CHUNK
from schemas.chat_completions import ChatCompletionRequest


class ChatCompletions:
    """What POST /v1/chat/completions means, whatever carries it."""

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

    async def prepare(self, request: ChatCompletionRequest, model: ServedModel) -> CompletionJob:
        """The answer, not yet begun; raises for what this model or server cannot honour."""
        self._limiter.slots_for(model).check(model.turn(request.priority or 0))
        answer = await self.render(request, model)
        model.reserve(answer.requests[0])
        return answer

    async def render(self, request: ChatCompletionRequest, model: ServedModel) -> CompletionJob:
        """The same answer for those who only look at its request: takes no place in a queue and
        none of the caller's tokens.
        """
        tools = self._check(request, model)
        hints = template_variables(request, model, self._policy)
        prompt = await self._render(request, model, tools, hints.values)
        check_request_fields(request, model, special_tokens=False)
        max_tokens = token_budget(
            _max_tokens(request),
            prompt_tokens=len(prompt.token_ids),
            context=model.max_model_len,
            param="messages",
        )
        max_tokens = clamp_max_tokens(max_tokens, model)
        self._limits.check_answer_tokens(request.n or 1, max_tokens)
        read = needs_parser(tools, model)
        text = prompt_text(request, prompt, model) if read else None
        continued = bool(request.continue_final_message)
        opened = model.reading.reasoning_open(text, continued=continued, variables=hints.values)
        held = constraint(
            request,
            tools,
            model.reading,
            reasoning_open=opened,
            takes_tags=model.supports("structured_outputs.structural_tag"),
        )
        special_tokens = read and keep_special_tokens(model)
        asked = _asked(request, max_tokens, held, special_tokens=special_tokens)
        reading = parser_config(request, tools, held, text, model, hints.values) if read else None
        answer = self._answer(request, model, prompt, asked, reading)
        return replace(answer, adjusted=hints.adjusted) if hints.adjusted else answer

    def _answer(
        self,
        request: ChatCompletionRequest,
        model: ServedModel,
        prompt: Prompt,
        asked: SamplingOptions,
        reading: ParserConfig | None,
    ) -> CompletionJob:
        id, n = new_id("chatcmpl"), request.n or 1
        told = details(
            request,
            model,
            logprobs=asked.logprobs,
            defaults=self._stream_defaults,
            read=reading is not None,
        )
        params = sampling_params(request, asked, model)
        if params.beam_width is not None and reading is not None:
            raise unsupported("use_beam_search")  # a parser reads one answer after the other
        entries = count_prompt_logprobs(params, len(prompt.token_ids), model)
        self._limits.check_prompt_logprobs(entries, "prompt_logprobs")
        first = first_request(id, prompt, params, request, told, asked.held)
        requests = _choices(
            first if reading is None else with_parser_needs(first, reading, model), n
        )
        return CompletionJob(
            id=id,
            model=model,
            slots=self._limiter.slots_for(model),
            requests=requests,
            n=n,
            details=told,
            echo=[prefilled_text(request.messages)] if request.echo else [],
            reading=reading,
        )

    def _check(self, request: ChatCompletionRequest, model: ServedModel) -> Tools:
        require_generation(model)
        self._policy.check(request, NEUTRAL_IN_CHAT)
        self._limits.check_n(request.n or 1)
        self._limits.check_messages(len(request.messages))
        _check(request)
        tools = parse_tools(request, self._policy)
        if tools.in_use:
            require_tool_support(tools, model.reading, shown=model.template_knows("tools"))
        return tools

    async def _render(
        self,
        request: ChatCompletionRequest,
        model: ServedModel,
        tools: Tools,
        variables: Mapping[str, Any],
    ) -> Prompt:
        prompt = await model.render_chat(
            template_messages(request.messages, self._policy),
            tools=tools.for_template,
            documents=request.documents,
            add_generation_prompt=_add_generation_prompt(request),
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=variables,
            add_special_tokens=bool(request.add_special_tokens),
            truncation=truncation(request, model, answer_tokens=_max_tokens(request) or 1),
        )
        self._limits.check_prompt_tokens(len(prompt.token_ids), "messages")
        return prompt


def _asked(
    request: ChatCompletionRequest,
    max_tokens: int | None,
    held: Constraint,
    *,
    special_tokens: bool,
) -> SamplingOptions:
    return SamplingOptions(
        max_tokens=max_tokens,
        logprobs=_logprobs(request),
        prompt_logprobs=request.prompt_logprobs,
        held=held,
        special_tokens=special_tokens,
    )


def _choices(first: GenerationRequest, n: int) -> list[GenerationRequest]:
    """All choices; what the prompt is worth is told once, so it is asked for once."""
    if n == 1 or first.sampling_params.prompt_logprobs is None:
        return choice_requests(first, n)
    untold = replace(first, sampling_params=replace(first.sampling_params, prompt_logprobs=None))
    return [first, *choice_requests(untold, n)[1:]]


def _check(request: ChatCompletionRequest) -> None:
    """What fields demand of one another."""
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(request, name) == 0:
            wanted = "Expected a value >= 1, or -1 for no limit, but got 0 instead."
            message = f"Invalid '{name}': integer below minimum value. {wanted}"
            raise InvalidRequest(message, param=name, code="integer_below_min_value")
    if request.modalities is not None and "audio" in request.modalities:
        message = "Invalid value: 'audio'. Supported values are: 'text'."
        raise InvalidRequest(message, param="modalities", code="unsupported_value")
    if request.continue_final_message:
        if request.add_generation_prompt:
            message = "Use either 'continue_final_message' or 'add_generation_prompt'."
            raise InvalidRequest(message, param="continue_final_message")
        prefilled_text(request.messages, param="continue_final_message")
    if request.top_logprobs is not None and not request.logprobs:
        message = "Invalid 'top_logprobs': 'logprobs' must be true where 'top_logprobs' is used."
        raise InvalidRequest(message, param="top_logprobs")


def _add_generation_prompt(request: ChatCompletionRequest) -> bool:
    if request.add_generation_prompt is None:
        return not request.continue_final_message
    return request.add_generation_prompt


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    asked = request.max_completion_tokens or request.max_tokens
    return None if asked == UNLIMITED else asked


def _logprobs(request: ChatCompletionRequest) -> int | None:
    return (request.top_logprobs or 0) if request.logprobs else None


def chunks(answer: CompletionJob) -> ChunkStream:
    """The ending of a streamed answer."""
    return ChunkStream(answer, CHAT_COMPLETION_CHUNK, ChatLogprobs)


async def complete(answer: CompletionJob) -> dict[str, Any]:
    """The ending of a whole answer: the fields of ChatCompletion, ready to be written.

    Not the schema's own model: building and dumping it costs 8 us, this 1.
    """
    wholes, usage = await collect(answer)
    fields = answer.fields()
    return {
        "id": fields["id"],
        "object": "chat.completion",
        **fields,
        "choices": [_choice(answer, index, whole) for index, whole in enumerate(wholes)],
        "usage": usage.model_dump(),
        **_beside_choices(answer, wholes[0]),
    }


def _choice(answer: CompletionJob, index: int, whole: CompletedChoice) -> dict[str, Any]:
    """The fields of ChatCompletionChoice."""
    told = answer.details
    ids = {"token_ids": whole.token_ids} if told.token_ids else {}
    logprobs = None
    if told.logprobs is not None:
        logprobs = logprobs_writer(answer, ChatLogprobs).tokens(whole.logprobs)
    return {
        "index": index,
        "message": _message(whole),
        "logprobs": logprobs,
        "finish_reason": whole.finish_reason,
        **ids,
        **whole.more(),
    }


def _message(whole: CompletedChoice) -> dict[str, Any]:
    """The fields of ChatCompletionMessage."""
    if whole.message is not None:
        return whole.message.fields(whole.text)
    return {"role": "assistant", "content": whole.text, "refusal": None, "annotations": []}


def _beside_choices(answer: CompletionJob, first: CompletedChoice) -> dict[str, Any]:
    """The fields of an answer that are there where the request asked for them."""
    told = answer.details
    fields: dict[str, Any] = {}
    if told.metadata is not None:
        fields["metadata"] = told.metadata
    if told.prompt_logprobs:
        fields["prompt_logprobs"] = wire_prompt_logprobs(first.prompt_logprobs)
    if told.token_ids:
        fields["prompt_token_ids"] = answer.prompt_token_ids(0)
    return fields
