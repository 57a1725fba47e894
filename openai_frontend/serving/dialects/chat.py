"""POST /v1/chat/completions, independent of HTTP: OpenAI's requests and responses."""

from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Renders, ServingModel
from openai_frontend.serving.conversation import Conversation, ConversationPlan, Conversations
from openai_frontend.serving.dialects.chat_output import ChatMessageBuilder, ChatWriter
from openai_frontend.serving.dialects.chat_tools import parse_tools
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
    require_generation,
)
from openai_frontend.serving.output.logprobs import ChatLogprobs, logprobs_writer
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_CHAT, FieldPolicy
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.request_body import Plans
from openai_frontend.serving.request.sampling import UNLIMITED
from openai_frontend.serving.request.template_inputs import (
    prefilled_text,
    template_messages,
    template_variables,
)
from openai_frontend.serving.request.tools import require_tool_support
from schemas.chat_completions import ChatCompletionRequest


class ChatCompletions:
    """Reads requests, and makes jobs of them."""

    def __init__(self, conversations: Conversations, policy: FieldPolicy) -> None:
        self._conversations = conversations
        self._policy = policy

    async def prepare(
        self, request: ChatCompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """A job that is ready to run. `plans` belongs to all requests that
        differ only in their messages.

        Raises for a full queue before anything is rendered, and for what this model or server does
        not support.
        """
        self._conversations.admission.check(current_request(), model, request.priority or 0)
        return await self.build_job(request, model, plans)

    async def build_job(
        self, request: ChatCompletionRequest, model: ServingModel, plans: Plans | None = None
    ) -> CompletionJob:
        """The job alone, whether the queue has room or not."""
        return await self._conversations.job(self._read(request, model, plans), model)

    def _read(
        self, request: ChatCompletionRequest, model: Renders, plans: Plans | None
    ) -> Conversation:
        """The request in neutral terms. Refusals that are cheap come first."""
        self._conversations.limits.check_messages(len(request.messages))
        plans = Plans() if plans is None else plans
        plan = plans.plan(model, lambda: self._plan(request, model))
        continued = None
        if request.continue_final_message:
            continued = prefilled_text(request.messages, param="continue_final_message")
        media: list[MediaPart] = []
        messages = template_messages(request.messages, self._policy, media)
        return Conversation(
            id_prefix="chatcmpl",
            plan=plan,
            fields=request,
            messages=messages,
            media=media,
            continued=continued,
            echo=prefilled_text(request.messages) if request.echo else None,
        )

    def _plan(self, request: ChatCompletionRequest, model: Renders) -> ConversationPlan:
        """Refuse what the server or the model does not support."""
        require_generation(model)
        self._policy.check(request, NEUTRAL_IN_CHAT)
        self._conversations.limits.check_n(request.n or 1)
        _check_fields(request)
        tools = parse_tools(request, self._policy)
        if tools.in_use:
            require_tool_support(tools, model.output_format, shown=model.template_knows("tools"))
        hints = {"reasoning_effort": request.reasoning_effort, "verbosity": request.verbosity}
        variables = template_variables(hints, request.chat_template_kwargs, model, self._policy)
        check_request_fields(request, model, special_tokens=False)
        return ConversationPlan(
            tools=tools,
            variables=variables,
            max_tokens=_max_tokens(request),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            documents=request.documents,
            add_generation_prompt=_add_generation_prompt(request),
            include_reasoning=request.include_reasoning is not False,
        )


def _check_fields(request: ChatCompletionRequest) -> None:
    """Check fields that depend on each other."""
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(request, name) == 0:
            expected = "Expected a value >= 1, or -1 for no limit, but got 0 instead."
            message = f"Invalid '{name}': integer below minimum value. {expected}"
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


def chunks(job: CompletionJob) -> StreamDriver:
    """The response as a stream of chunks."""
    return StreamDriver(job, ChatWriter(job))


async def complete(job: CompletionJob) -> dict[str, Any]:
    """The whole response: the fields of ChatCompletion.

    Not a ChatCompletion: building and dumping that model takes 8 us, this 1 us.
    """
    choices, usage = await collect(job, lambda: ChatMessageBuilder(job.tools))
    fields = leading_fields(job)
    return {
        "id": fields["id"],
        "object": "chat.completion",
        **fields,
        "choices": [_choice(job, index, choice) for index, choice in enumerate(choices)],
        "usage": usage_fields(usage),
        **_extra_fields(job, choices[0]),
    }


def _choice(
    job: CompletionJob, index: int, choice: CompletedChoice[ChatMessageBuilder]
) -> dict[str, Any]:
    """The fields of ChatCompletionChoice."""
    ids = {"token_ids": choice.token_ids} if job.options.token_ids else {}
    logprobs = None
    if job.options.logprobs is not None:
        logprobs = logprobs_writer(job.model, job.options, ChatLogprobs).tokens(choice.logprobs)
    return {
        "index": index,
        "message": choice.output.fields(job.echo_text(index) if job.echo else ""),
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.end, job.tools),
        **ids,
        **(choice.logits_fields() if choice.logits else {}),
    }


def _extra_fields(job: CompletionJob, first: CompletedChoice[ChatMessageBuilder]) -> dict[str, Any]:
    """Fields that the response has only on request."""
    options = job.options
    fields: dict[str, Any] = {}
    if options.metadata is not None:
        fields["metadata"] = options.metadata
    if options.prompt_logprobs:
        fields["prompt_logprobs"] = wire_prompt_logprobs(first.prompt_logprobs)
    if options.token_ids:
        fields["prompt_token_ids"] = job.prompt_token_ids(0)
    if job.guard is not None:
        fields["moderation"] = job.guard.fields()
    return fields
