"""POST /v1/responses, independent of HTTP: reads requests, and makes jobs of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Renders, ServingModel
from openai_frontend.serving.conversation import Conversation, ConversationPlan, Conversations
from openai_frontend.serving.dialects.responses.input_items import read_input
from openai_frontend.serving.dialects.responses.output_items import ItemForm
from openai_frontend.serving.dialects.responses.response_object import (
    ResponseJob,
    echoed,
    wants_summary,
)
from openai_frontend.serving.dialects.responses.tool_list import (
    ToolList,
    has_tools_in_input,
    read_tools,
)
from openai_frontend.serving.output.completion_job import (
    CompletionJob,
    check_request_fields,
    require_generation,
)
from openai_frontend.serving.request.field_names import renamed
from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_RESPONSES,
    FieldPolicy,
    Neutral,
)
from openai_frontend.serving.request.media import Media
from openai_frontend.serving.request.request_body import Plans
from openai_frontend.serving.request.sealed_text import TextSeal
from openai_frontend.serving.request.template_inputs import (
    TemplateVariables,
    ignored_tools,
    template_variables,
)
from openai_frontend.serving.request.tools import require_tool_support
from schemas.responses import ConfigurationUpdate, ResponsesRequest
from schemas.sampling import SamplingFields

# Fields of chats -> their names here
_MOVED = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
# Fields of completions in the schema of sampling, whose results a response has no place for
_WITHOUT_PLACE: Neutral = {
    "logprob_token_ids": ([],),
    "n": (1,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
}
# Names of fields in errors
_NAMES = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "verbosity": "text.verbosity",
}
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
# Values of `include`. Those of hosted tools have nothing to include.
_INCLUDE = (
    _LOGPROBS,
    _ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_NOT_SAMPLING = frozenset({"stream_options", "metadata", "service_tier", *_WITHOUT_PLACE})


@dataclass(slots=True, eq=False, kw_only=True)
class _Plan:
    """The meaning of a request for one model, without its input."""

    conversation: ConversationPlan
    tools: ToolList
    fields: SamplingFields
    echo: bytes
    summaries: bool


class Responses:
    """Reads requests, and makes jobs of them."""

    def __init__(self, conversations: Conversations, policy: FieldPolicy) -> None:
        self._conversations = conversations
        self._policy = policy

    async def prepare(
        self, request: ResponsesRequest, model: ServingModel, plans: Plans | None = None
    ) -> ResponseJob:
        """A job that is ready to run. `plans` belongs to all requests that differ only in their
        input.

        Raises for a full queue before anything is rendered, and for what this model or server does
        not support.
        """
        self._conversations.admission.check(current_request(), model, request.priority or 0)
        _check_moved(request)
        try:
            plan, conversation = self._read(request, model, plans)
            job = await self._job(request, conversation, model)
        except ContextLengthExceeded as error:
            raise _too_long(error) from error
        except InvalidRequest as error:
            raise renamed(error, _NAMES) from error
        form = ItemForm(
            id=job.id.partition("_")[2],
            names=plan.tools.names,
            summaries=plan.summaries,
            seal=self._seal() if _ENCRYPTED in (request.include or ()) else None,
        )
        return ResponseJob(job=job, form=form, echo=plan.echo)

    async def count(self, request: ResponsesRequest, model: ServingModel) -> int:
        """The tokens of the prompt."""
        _check_moved(request)
        try:
            _, conversation = self._read(request, model, None)
            return await self._conversations.count(conversation, model)
        except InvalidRequest as error:
            raise renamed(error, _NAMES) from error

    async def _job(
        self, request: ResponsesRequest, conversation: Conversation, model: ServingModel
    ) -> CompletionJob:
        """Leaves out the oldest turns that do not fit, if the request allows that. Media is read
        only once.
        """
        if request.truncation == "auto":
            items = await self._conversations.read_media(conversation, model)
            conversation = replace(conversation, items=items)
        try:
            return await self._conversations.job(conversation, model)
        except ContextLengthExceeded:
            turns = Turns(conversation)
            if request.truncation != "auto" or not turns.droppable:
                raise
        fewest, most, best = 1, turns.droppable, None
        while fewest < most:
            middle = (fewest + most) // 2
            try:
                best = await self._conversations.job(turns.without(middle), model)
                most = middle
            except ContextLengthExceeded:
                fewest = middle + 1
        return best or await self._conversations.job(turns.without(most), model)

    def _seal(self) -> TextSeal:
        return self._conversations.seals.of(current_request().tenant)

    def _read(
        self, request: ResponsesRequest, model: Renders, plans: Plans | None
    ) -> tuple[_Plan, Conversation]:
        """The request in neutral terms. Refusals that are cheap come first."""
        items = 1 if isinstance(request.input, str) else len(request.input)
        self._conversations.limits.check_messages(items)
        update = _update_of(request)
        if plans is None or update is not None or has_tools_in_input(request):
            plans = Plans()
        plan = plans.plan(model, lambda: self._plan(request, model, update))
        all_reasoning = request.reasoning is None or request.reasoning.context != "current_turn"
        tools = plan.tools
        given = read_input(
            request.input,
            tools.names.flat,
            all_reasoning=all_reasoning,
            seal=self._seal(),
            found=tools.found,
        )
        self._policy.unknown(given.unknown)
        messages = given.messages
        if request.instructions:
            messages = [{"role": "system", "content": request.instructions}, *messages]
        conversation = Conversation(
            id_prefix="resp",
            id_separator="_",
            plan=plan.conversation,
            fields=plan.fields,
            messages=messages,
            media=given.media,
            repeats_output=True,
            lifts_system=True,
        )
        return plan, conversation

    def _plan(
        self, request: ResponsesRequest, model: Renders, update: ConfigurationUpdate | None
    ) -> _Plan:
        """Refuse what the server or the model does not support."""
        require_generation(model)
        self._policy.check(request, NEUTRAL_IN_RESPONSES)
        _check_state(request)
        _check_values(request)
        if update is not None:
            request = _updated(request, update)
        self._check_members(request)
        tools = read_tools(request, self._policy)
        if tools.tools.in_use:
            shown = model.template_knows("tools")
            require_tool_support(tools.tools, model.output_format, shown=shown)
        hints = {
            "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
            "verbosity": None if request.text is None else request.text.verbosity,
        }
        variables = template_variables(hints, None, model, self._policy)
        echo = echoed(request, tools.shown, variables.adjusted)
        fields = _sampling_fields(request)
        check_request_fields(fields, model, special_tokens=False)
        plan = ConversationPlan(
            tools=tools.tools,
            variables=_reported(variables, tools.ignored),
            max_tokens=request.max_output_tokens,
            shortens_output=True,
            logprobs=(request.top_logprobs or 0) if _LOGPROBS in (request.include or ()) else None,
            names=_NAMES,
        )
        summaries = wants_summary(request)
        return _Plan(conversation=plan, tools=tools, fields=fields, echo=echo, summaries=summaries)

    def _check_members(self, request: ResponsesRequest) -> None:
        """Report unknown names within the objects of this API."""
        self._policy.check_members(request.reasoning, "reasoning")
        if request.text is not None:
            self._policy.check_members(request.text, "text")
            self._policy.check_members(request.text.format, "text.format")


def _reported(variables: TemplateVariables, ignored: Sequence[str]) -> TemplateVariables:
    """With the names of this API, and the hosted tools that were left out."""
    adjusted = {_NAMES.get(name, name): value for name, value in variables.adjusted.items()}
    return replace(variables, adjusted=adjusted | ignored_tools(ignored))


def _sampling_fields(request: ResponsesRequest) -> SamplingFields:
    """The fields of sampling alone. The request's input may be long, and the plan is kept."""
    declared = SamplingFields.model_fields.keys() - _NOT_SAMPLING
    values = {name: getattr(request, name) for name in request.model_fields_set & declared}
    form = None if request.text is None else request.text.format
    if form is not None:
        values["response_format"] = _chat_format(form)
    return SamplingFields.model_construct(**values)


def _chat_format(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """The format as chats state it."""
    if form["type"] != "json_schema":
        if form.get("json_schema"):  # as chats nest it
            place = "text.format.json_schema"
            advice = "Use the type 'json_schema', with 'schema' in 'text.format' itself."
            message = f"Unsupported parameter: '{place}'. {advice}"
            raise InvalidRequest(message, param=place, code="unsupported_parameter")
        return form
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _update_of(request: ResponsesRequest) -> ConfigurationUpdate | None:
    """The last update of the configuration within the input."""
    if isinstance(request.input, str):
        return None
    updates = [item for item in request.input if isinstance(item, ConfigurationUpdate)]
    return updates[-1] if updates else None


def _updated(request: ResponsesRequest, update: ConfigurationUpdate) -> ResponsesRequest:
    values: dict[str, Any] = {}
    if update.reasoning is not None and update.reasoning.effort is not None:
        effort = {"effort": update.reasoning.effort}
        before = request.reasoning
        values["reasoning"] = (
            update.reasoning if before is None else before.model_copy(update=effort)
        )
    if update.text is not None and update.text.format is not None:
        before_text = request.text
        changed = {"format": update.text.format}
        values["text"] = (
            update.text if before_text is None else before_text.model_copy(update=changed)
        )
    return request.model_copy(update=values)


def _check_moved(request: ResponsesRequest) -> None:
    """Name the field of this API for one of chats."""
    given = {*request.model_fields_set, *(request.model_extra or {})}
    for name in sorted(given & _MOVED.keys()):
        if getattr(request, name, None) is not None:
            message = f"Unsupported parameter: '{name}' is '{_MOVED[name]}' in the Responses API."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    for name in sorted(given & _WITHOUT_PLACE.keys()):
        value = getattr(request, name)
        if value is not None and value not in _WITHOUT_PLACE[name]:
            message = f"Unsupported parameter: '{name}' is not supported in the Responses API."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")


def _check_state(request: ResponsesRequest) -> None:
    """Refuse what needs stored responses."""
    if request.previous_response_id is not None:
        id = request.previous_response_id[:64]
        message = (
            f"Previous response with id '{id}' not found. This server stores no responses: send "
            "the earlier items in 'input'."
        )
        code = "previous_response_not_found"
        raise InvalidRequest(message, param="previous_response_id", code=code)
    if request.background:
        message = "Unsupported parameter: 'background' requires stored responses, which are off."
        raise InvalidRequest(message, param="background", code="unsupported_parameter")


def _check_values(request: ResponsesRequest) -> None:
    if request.prompt_cache_options is not None and request.prompt_cache_options.prewarm:
        name = "prompt_cache_options.prewarm"
        message = f"Unsupported parameter: '{name}': this server caches prompts as it answers them."
        raise InvalidRequest(message, param=name, code="unsupported_parameter")
    if request.reasoning is not None and request.reasoning.mode == "pro":
        message = "Unsupported value: 'reasoning.mode' 'pro' is not supported. Use 'standard'."
        raise InvalidRequest(message, param="reasoning.mode", code="unsupported_value")
    for at, value in enumerate(request.include or ()):
        if value not in _INCLUDE:
            supported = ", ".join(f"'{each}'" for each in _INCLUDE)
            message = f"Invalid value: '{value[:64]}'. Supported values are: {supported}."
            raise InvalidRequest(message, param=f"include[{at}]", code="invalid_value")


def _too_long(error: ContextLengthExceeded) -> ContextLengthExceeded:
    """In OpenAI's words, by which agents know that they must shorten the conversation."""
    message = (
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again."
    )
    if error.prompt_tokens is not None:
        message += f" (The input has {error.prompt_tokens} tokens, the context {error.context}.)"
    return ContextLengthExceeded(message, param="input")


class Turns:
    """The turns of a conversation, each from a user's message to the next. The oldest ones can be
    left out: a turn has its calls together with their outputs.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._starts = [
            at
            for at, message in enumerate(conversation.messages)
            if message["role"] == "user"
            and (at == 0 or conversation.messages[at - 1]["role"] != "user")
        ]

    @property
    def droppable(self) -> int:
        """Turns that can be left out: all but the last."""
        return max(0, len(self._starts) - 1)

    def without(self, turns: int) -> Conversation:
        """The conversation without its oldest turns. Messages of the system stay."""
        cut, conversation = self._starts[turns], self._conversation
        kept: list[Mapping[str, Any]] = []
        media: list[int] = []  # the positions of what is kept
        first = 0  # of the message's media
        for at, message in enumerate(conversation.messages):
            last = first + _media_count(message)
            if at >= cut or message["role"] in ("system", "developer"):
                kept.append(message)
                media += range(first, last)
            first = last
        items = conversation.items
        if items is not None:
            items = Media(images=tuple(items.images[at] for at in media))
        parts = [conversation.media[at] for at in media]
        return replace(conversation, messages=kept, media=parts, items=items)


def _media_count(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    return sum(part["type"] == "image" for part in content)
