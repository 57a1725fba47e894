"""POST /v1/decisions, independent of HTTP: questions about one input, each answered by the log
probabilities of one token.

A question is a chat that ends with lettered options, and the model is asked for the letter. All
questions begin with the same input, which the engine's prefix cache has after the first one.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import orjson

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.parsing.events import Event
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Renders, ServingModel
from openai_frontend.serving.conversation import Conversation, ConversationPlan, Conversations
from openai_frontend.serving.dialects.responses.decision_questions import (
    LABELS,
    answer,
    check_options,
    parts_of,
)
from openai_frontend.serving.dialects.responses.input_items import (
    Item,
    ReadInput,
    check_contents,
    read_input,
)
from openai_frontend.serving.output.collect import collect
from openai_frontend.serving.output.completion_job import (
    CompletionJob,
    Usage,
    new_id,
    request_id,
    require_generation,
)
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.field_names import renamed
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_DECISIONS, FieldPolicy
from openai_frontend.serving.request.media import NO_MEDIA, Media
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.serving.request.template_inputs import TemplateVariables, thinking_switches
from schemas.decisions import DecisionRequest
from schemas.sampling import SamplingFields

MAX_JSON_BYTES = 256 * 1024  # of one `input_json`, as OpenAI's
_NAMES = {"messages": "input", "n": "questions"}  # of fields in errors
_QUESTION = "input[0].content"  # of a question that is read alone


@dataclass(slots=True)
class _Letters:
    """The letters as the model would write them first, and the token before them."""

    token_ids: list[int]
    last_of_prompt: int


@dataclass(slots=True)
class _NoText:
    """Only the log probabilities of the output are read."""

    def add(self, events: Iterable[Event]) -> None:
        """The text of the letter."""


@dataclass(slots=True)
class _Dialogue:
    """Messages with their media."""

    messages: Sequence[Mapping[str, Any]]
    parts: Sequence[MediaPart] = ()
    media: Media = field(default=NO_MEDIA)


class Decisions:
    """Answers questions with chat models."""

    def __init__(self, conversations: Conversations, policy: FieldPolicy) -> None:
        self._conversations = conversations
        self._policy = policy

    async def create(self, request: DecisionRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._conversations.admission.check(current_request(), model)
        self._check(request, model)
        switches = TemplateVariables(thinking_switches(model, on=False))
        items = 1 if isinstance(request.input, str) else len(request.input)
        try:
            self._conversations.limits.check_messages(items)
            letters = await _letters(model, switches, check_options(request.questions))
            job = await self._job(request, model, switches, letters)
            choices, usage = await collect(job, _NoText)  # only the engine measures media
        except InvalidRequest as error:
            raise renamed(error, _NAMES) from error
        answers = [
            answer(question, at, choice.logprobs[0] if choice.logprobs else {}, letters.token_ids)
            for at, (question, choice) in enumerate(zip(request.questions, choices, strict=True))
        ]
        body = {"model": model.name, "answers": answers, "usage": _usage(usage)}
        return orjson.dumps(body)

    def _check(self, request: DecisionRequest, model: Renders) -> None:
        require_generation(model)
        self._policy.check_extra(request, NEUTRAL_IN_DECISIONS)
        for at, question in enumerate(request.questions):
            self._policy.unknown(f"questions[{at}].{name}" for name in question.model_extra or ())
        if model.prompts is None or not model.supports("logprob_token_ids"):
            _refuse_model(model, "its backend reports no log probabilities of chosen tokens")

    async def _job(
        self,
        request: DecisionRequest,
        model: ServingModel,
        switches: TemplateVariables,
        letters: _Letters,
    ) -> CompletionJob:
        """One job for all questions, each a request of one token."""
        count = len(request.questions)
        plan = ConversationPlan(variables=switches, max_tokens=1, logprobs=0)
        sampling = {"temperature": 0.0, "logprob_token_ids": letters.token_ids}
        fields = SamplingFields.model_validate(sampling)
        shared = await self._dialogue(_read(request.input), plan, fields, model)
        shared.media.check_choices(count)
        id, tokens, requests = new_id("decision"), 0, list[GenerationRequest]()
        for at, question in enumerate(request.questions):
            try:
                asked = read_input([_with_json_text(_user(parts_of(question)), "input[0]")], _flat)
                own = await self._dialogue(asked, plan, fields, model)
            except InvalidRequest as error:
                raise _in_question(error, at) from error
            merged = _merged(shared, own, plan, fields)
            try:
                job = await self._conversations.job(merged, model)
            except ContextLengthExceeded:
                await self._check_alone(_conversation(own, plan, fields), model, f"questions[{at}]")
                raise
            [first] = job.requests
            tokens += len(ids := first.prompt_token_ids or ())
            self._conversations.limits.check_prompt_tokens(tokens, "input")
            if not ids or ids[-1] != letters.last_of_prompt:
                _refuse_model(model, "its chat template does not end with the start of a reply")
            requests.append(replace(first, request_id=request_id(id, at, prompts=count)))
            await asyncio.sleep(0)  # a short prompt is rendered on the event loop
        return CompletionJob(
            id=id,
            model=model,
            context=current_request(),
            admission=self._conversations.admission,
            requests=requests,
            options=ResponseOptions(logprobs=0),
        )

    async def _check_alone(self, question: Conversation, model: ServingModel, param: str) -> None:
        """Raise if the context has no room for the question, whatever the input is."""
        try:
            await self._conversations.job(question, model)
        except ContextLengthExceeded as error:
            message = error.message.replace("messages", param)
            raise ContextLengthExceeded(message, param=param) from error

    async def _dialogue(
        self,
        given: ReadInput,
        plan: ConversationPlan,
        fields: SamplingFields,
        model: ServingModel,
    ) -> _Dialogue:
        dialogue = _Dialogue(given.messages, given.media)
        if given.media:  # read once, for all questions
            conversation = _conversation(dialogue, plan, fields)
            dialogue.media = await self._conversations.read_media(conversation, model)
        return dialogue


async def _letters(model: Renders, switches: TemplateVariables, count: int) -> _Letters:
    """The tokens of the first letters, found with a short prompt: all prompts end alike.

    Raises InvalidRequest if a letter is not one token, or the model reasons before it replies.
    """
    probe = await model.render_chat(
        [{"role": "user", "content": "x"}],
        add_generation_prompt=True,
        template_kwargs=switches.values,
    )
    if model.output_format.reasoning_open(probe.text, variables=switches.values):
        _refuse_model(model, "its template has no switch that turns reasoning off")
    before, labels = list(probe.token_ids), LABELS[:count]
    texts = [f"{probe.text}{label}" for label in labels]
    params = ["questions"] * count
    written = await model.tokenize_all(texts, params=params, add_special_tokens=False)
    ids = [list(each.token_ids) for each in written]
    letters = [each[-1] for each in ids if each[:-1] == before]
    if len({*letters}) != count:
        _refuse_model(model, "its tokenizer has no token for each letter at the start of a reply")
    return _Letters(letters, before[-1])


def _refuse_model(model: Renders, reason: str) -> NoReturn:
    message = f"The model '{model.name}' cannot answer decisions: {reason}."
    raise InvalidRequest(message, param="model", code="unsupported_model")


def _user(content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def _flat(name: str, namespace: str | None) -> str:
    """The model is shown no tools, so names only need to be readable."""
    return name if namespace is None else f"{namespace}.{name}"


def _read(given: str | Sequence[Item]) -> ReadInput:
    if isinstance(given, str):
        return read_input(given, _flat)
    _check_calls(given)
    items = [_with_json_text(item, f"input[{at}]") for at, item in enumerate(given)]
    return read_input(items, _flat)


def _check_calls(items: Sequence[Item]) -> None:
    """Each output of a tool must follow its call."""
    calls = set()
    for at, item in enumerate(items):
        kind, id = item.get("type") or "", item.get("call_id")
        if kind.endswith("_call"):
            calls.add((kind, id))
        elif kind.endswith("_output") and (kind.removesuffix("_output"), id) not in calls:
            param = f"input[{at}].call_id"
            message = f"Invalid '{param}': no earlier item is the call of this output."
            raise InvalidRequest(message, param=param, code="invalid_value")


def _with_json_text(item: Item, place: str) -> Item:
    """The item with its parts of JSON as text."""
    name = "output" if "output" in item else "content"
    parts = item.get(name)
    if not isinstance(parts, list) or all(each["type"] != "input_json" for each in parts):
        return item
    texts = [_text_of(part, f"{place}.{name}[{at}]") for at, part in enumerate(parts)]
    return {**item, name: texts}


def _text_of(part: Item, place: str) -> Item:
    if part["type"] != "input_json":
        return part
    check_contents(part, place)
    if part.get("data") is None:
        message = f"Missing required parameter: '{place}.data'."
        raise InvalidRequest(message, param=f"{place}.data", code="missing_required_parameter")
    text = client_json(part["data"])
    if len(text) > MAX_JSON_BYTES:
        message = (
            f"Invalid '{place}.data': expected at most {MAX_JSON_BYTES} bytes of JSON, but got "
            f"{len(text)} instead."
        )
        raise InvalidRequest(message, param=f"{place}.data")
    return {"type": "input_text", "text": text.decode("utf-8", "surrogatepass")}


def _in_question(error: InvalidRequest, at: int) -> InvalidRequest:
    """The error about a question's part with the path in the request."""
    if error.param is None or not error.param.startswith(_QUESTION):
        return error
    path = f"questions[{at}].instructions{error.param.removeprefix(_QUESTION)}"
    return InvalidRequest(error.message.replace(error.param, path), param=path, code=error.code)


def _merged(
    shared: _Dialogue, own: _Dialogue, plan: ConversationPlan, fields: SamplingFields
) -> Conversation:
    """The input with the question, in the user's last message if there is one: many templates
    refuse two in a row.
    """
    *before, last = shared.messages
    [question] = own.messages
    if last["role"] != "user":
        messages = [*shared.messages, question]
    else:
        content = _joined(last["content"], question["content"])
        messages = [*before, {**last, "content": content}]
    images = (*shared.media.images, *own.media.images)
    parts = [*shared.parts, *own.parts]
    return _conversation(_Dialogue(messages, parts, Media(images)), plan, fields)


def _conversation(
    dialogue: _Dialogue, plan: ConversationPlan, fields: SamplingFields
) -> Conversation:
    return Conversation(
        id_prefix="decision",
        plan=plan,
        fields=fields,
        messages=dialogue.messages,
        media=dialogue.parts,
        items=dialogue.media if dialogue.media.images else None,
        lifts_system=True,
    )


def _joined(first: Any, second: Any) -> Any:
    """Two contents as one: a text, or parts if one of them has images."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    both = (first, second)
    contents = (
        [{"type": "text", "text": each}] if isinstance(each, str) else each for each in both
    )
    return [part for content in contents for part in content]


def _usage(usage: Usage) -> dict[str, Any]:
    """The fields of DecisionUsage."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
