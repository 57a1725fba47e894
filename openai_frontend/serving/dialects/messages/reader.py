"""POST /v1/messages and /v1/messages/count_tokens, independent of HTTP: Anthropic's requests."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Renders, ServingModel
from openai_frontend.serving.conversation import Conversation, ConversationPlan, Conversations
from openai_frontend.serving.dialects.messages.history import read_history
from openai_frontend.serving.dialects.messages.tool_list import FoundTools, read_tools
from openai_frontend.serving.output.completion_job import CompletionJob, require_generation
from openai_frontend.serving.request.field_names import renamed
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_MESSAGES, FieldPolicy
from openai_frontend.serving.request.request_body import Plans
from openai_frontend.serving.request.sealed_text import TextSeal
from openai_frontend.serving.request.template_inputs import (
    IGNORED,
    TemplateVariables,
    ignored_tools,
    template_variables,
    thinking_switches,
)
from openai_frontend.serving.request.tools import require_tool_support
from schemas.messages import CountTokensRequest, MessagesRequest
from schemas.sampling import SamplingFields

# Fields of other code -> those of this API
_NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """The form of the answer, as requested."""

    max_tokens: int = 1  # as requested
    hidden_by: TextSeal | None = None  # reasoning is only in its signature, sealed


@dataclass(slots=True, kw_only=True)
class MessageJob:
    """A job that is ready to run, and the form of its answer."""

    job: CompletionJob
    options: MessageOptions = field(default_factory=MessageOptions)


@dataclass(frozen=True, slots=True)
class _MessagesPlan:
    """The meaning of a request for one model, without its messages."""

    plan: ConversationPlan
    fields: SamplingFields


class Messages:
    """Reads requests, and makes jobs of them."""

    def __init__(self, conversations: Conversations, policy: FieldPolicy) -> None:
        self._conversations = conversations
        self._policy = policy

    async def prepare(
        self, request: MessagesRequest, model: ServingModel, plans: Plans | None = None
    ) -> MessageJob:
        """A job that is ready to run. `plans` belongs to all requests that differ only in their
        messages.

        Raises for a full queue before anything is rendered, and for what this model or server does
        not support.
        """
        self._conversations.admission.check(current_request(), model, 0)
        _check_moved(request)
        with _own_words():
            conversation = self._read(request, model, Plans() if plans is None else plans)
            job = await self._conversations.job(conversation, model)
        if request.stream:
            job.requests[0].count_prompt = True  # `message_start` has them
        hides = _thinking(request).get("display") == "omitted"
        options = MessageOptions(
            max_tokens=request.max_tokens, hidden_by=self._seal() if hides else None
        )
        return MessageJob(job=job, options=options)

    async def count(self, request: CountTokensRequest, model: ServingModel) -> int:
        """The tokens of the prompt, even if they exceed the context."""
        _check_moved(request)
        with _own_words():
            return await self._conversations.count(self._read(request, model, Plans()), model)

    def _seal(self) -> TextSeal:
        return self._conversations.seals.of(current_request().tenant)

    def _read(self, request: CountTokensRequest, model: Renders, plans: Plans) -> Conversation:
        """The request in neutral terms. Refusals that are cheap come first."""
        self._conversations.limits.check_messages(len(request.messages))
        found = FoundTools(request.tools, request.tool_choice, request.messages)
        if found.definitions:
            plans = Plans()
        known: _MessagesPlan = plans.plan(model, lambda: self._plan(request, model, found))
        history = read_history(request.messages, request.system, self._seal(), found.definitions)
        return Conversation(
            id_prefix="msg",
            id_separator="_",
            plan=known.plan,
            fields=known.fields,
            messages=history.messages,
            media=history.media,
            continued=history.continued,
            lifts_system=True,
        )

    def _plan(
        self, request: CountTokensRequest, model: Renders, found: FoundTools
    ) -> _MessagesPlan:
        """Refuse what the server or the model does not support."""
        require_generation(model)
        self._policy.check_extra(request, NEUTRAL_IN_MESSAGES)
        self._check_members(request)
        tools = read_tools(request.tools, request.tool_choice, self._policy, found)
        if tools.in_use:
            require_tool_support(tools, model.output_format, shown=model.template_knows("tools"))
        plan = ConversationPlan(
            tools=tools,
            variables=self._variables(request, model),
            max_tokens=request.max_tokens if isinstance(request, MessagesRequest) else None,
            shortens_output=True,
            names=_NAMES,
        )
        return _MessagesPlan(plan, _sampling(request, model))

    def _check_members(self, request: CountTokensRequest) -> None:
        """Report unknown names within the objects of this API."""
        self._policy.check_members(request.thinking, "thinking")
        if (config := request.output_config) is not None:
            self._policy.check_members(config, "output_config")
            self._policy.check_members(config.get("format"), "output_config.format")

    def _variables(self, request: CountTokensRequest, model: Renders) -> TemplateVariables:
        """How much the model thinks, as far as its template lets a request say so."""
        thinking = _thinking(request)
        kind, budget = thinking.get("type"), thinking.get("budget_tokens")
        effort = "none" if kind == "disabled" else (request.output_config or {}).get("effort")
        thinks = kind is not None and kind != "disabled"
        switches = thinking_switches(model, on=True) if thinks else None
        hints = {"reasoning_effort": effort}
        variables = template_variables(hints, switches, model, self._policy)
        adjusted = {_NAMES[name]: value for name, value in variables.adjusted.items()}
        if budget is not None and not model.supports("thinking_token_budget"):
            self._policy.adjusted("thinking.budget_tokens", IGNORED, model.name)
            adjusted["thinking.budget_tokens"] = IGNORED
        hosted = (tool["type"] for tool in request.tools or () if "input_schema" not in tool)
        adjusted |= ignored_tools(hosted)
        return TemplateVariables(variables.values, adjusted)


def _check_moved(request: CountTokensRequest) -> None:
    """Name the field of this API for one of chats."""
    if (request.model_extra or {}).get("response_format") not in (None, {"type": "text"}):
        name = "response_format"
        message = f"Unsupported parameter: '{name}' is 'output_config.format' in the Messages API."
        raise InvalidRequest(message, param=name, code="unsupported_parameter")


def _thinking(request: CountTokensRequest) -> Mapping[str, Any]:
    return request.thinking or {}


def _sampling(request: CountTokensRequest, model: Renders) -> SamplingFields:
    """The request's fields under OpenAI's and vLLM's names."""
    values: dict[str, Any] = {}
    if form := (request.output_config or {}).get("format"):
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        values["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(request, MessagesRequest):
        sampled = {
            "stream": request.stream,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "stop": request.stop_sequences or None,
            "thinking_token_budget": _budget(request, model),
        }
        values |= {name: value for name, value in sampled.items() if value is not None}
    return SamplingFields(**values)


def _budget(request: MessagesRequest, model: Renders) -> int | None:
    """It may be all of `max_tokens`, as Qwen Code's is."""
    budget: int | None = _thinking(request).get("budget_tokens")
    return budget if model.supports("thinking_token_budget") else None


@contextmanager
def _own_words() -> Iterator[None]:
    """Errors of other code with this API's names, and in the words that its clients know."""
    try:
        yield
    except ContextLengthExceeded as error:
        if error.prompt_tokens is None or error.context is None:
            raise
        # Claude Code compacts the conversation if it reads exactly this
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.context} maximum"
        raise ContextLengthExceeded(message) from error
    except InvalidRequest as error:
        raise _with_source(renamed(error, _NAMES)) from error


def _with_source(error: InvalidRequest) -> InvalidRequest:
    """An image is at `source` here."""
    if error.param is not None and "image_url" in error.message + error.param:
        for name in (".image_url.url", ".image_url"):
            error.param = error.param.replace(name, ".source")
            error.message = error.message.replace(name, ".source")
        error.message = error.message.replace("image_url is", "image is")
    return error
