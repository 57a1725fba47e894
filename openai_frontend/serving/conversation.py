"""A conversation on its way to a model: rendered, measured, constrained and sampled.

No API's own form of a request: a dialect reads its requests into a `Conversation`, and writes the
events of the job's output.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes, Renders, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.constraints.grammar import is_slow_to_build, prepare_constraint
from openai_frontend.serving.output.completion_job import (
    CompletionJob,
    choice_requests,
    count_prompt_logprobs,
    first_request,
    new_id,
)
from openai_frontend.serving.output.output_parsing import (
    ParserConfig,
    keep_special_tokens,
    parser_config,
    prompt_text,
    with_counted_relay,
    with_parser_needs,
)
from openai_frontend.serving.request.field_names import renamed, renamed_fields
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import NO_MEDIA, Media, MediaReader, tokens_with_media
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.response_options import (
    NO_DEFAULTS,
    StreamDefaults,
    response_options,
)
from openai_frontend.serving.request.sampling import (
    Constraint,
    SamplingOptions,
    clamp_max_tokens,
    sampling_params,
    token_budget,
    truncation,
    unsupported,
)
from openai_frontend.serving.request.sealed_text import TextSeals
from openai_frontend.serving.request.template_inputs import NO_VARIABLES, TemplateVariables
from openai_frontend.serving.request.tools import NO_TOOLS, Tools
from schemas.sampling import SamplingFields

MESSAGES = "messages"  # the name of the messages in `ConversationPlan.names`
_MAX_PARAMS = 64  # for each plan: the maximum output may depend on the prompt's length
# Characters of a structural tag in a plan. It may repeat a definition of the schema, so it can be
# 60 times as long as the request; such a tag is built again each time.
_MAX_KEPT_TAG = 64 * 1024


@dataclass(slots=True, eq=False, kw_only=True)
class ConversationPlan:
    """The meaning of a request for one model, without its messages: requests that differ only in
    these share it.
    """

    tools: Tools = NO_TOOLS
    variables: TemplateVariables = NO_VARIABLES
    max_tokens: int | None = None  # of the output; None: as many as fit
    shortens_output: bool = False  # to what fits, instead of an error
    logprobs: int | None = None  # alternatives for each token of the output; None: none reported
    documents: Sequence[Mapping[str, Any]] | None = None  # for the chat template
    add_generation_prompt: bool = True  # the prompt ends where the assistant's turn begins
    include_reasoning: bool = True
    # A field of SamplingFields, or MESSAGES -> the dialect's name of it, if it has another
    names: Mapping[str, str] = field(default_factory=dict)
    # Whether the prompt ends within reasoning -> the constraint; empty if they differ by message
    constraints: dict[bool | None, Constraint] = field(default_factory=dict)
    # Maximum output, and whether the prompt ends within reasoning -> the sampling parameters
    params: dict[tuple[int | None, bool | None], SamplingParams] = field(default_factory=dict)
    # see `ServedModel.render_chat`; None if they cannot be written as JSON in an instant
    extra_characters: int | None = field(init=False)

    def __post_init__(self) -> None:
        extra = [self.tools.for_template, self.documents, self.variables.values]
        try:
            self.extra_characters = len(orjson.dumps(extra)) if any(extra) else 0
        except orjson.JSONEncodeError:  # a number of more than 64 bits, or too many levels
            self.extra_characters = None


@dataclass(slots=True, eq=False, kw_only=True)
class Conversation:
    """Messages and what the request says about the output, as any dialect may state it."""

    id_prefix: str  # of the job's id, as `chatcmpl`
    id_separator: str = "-"
    plan: ConversationPlan
    # Sampling, format of the output, options of the response, under OpenAI's and vLLM's names
    fields: SamplingFields
    messages: Sequence[Mapping[str, Any]]  # in the words of chat templates
    media: Sequence[MediaPart] = ()  # whose places are in the messages
    items: Media | None = None  # the media, if it has been read
    continued: str | None = None  # the text of the last message, which the output continues
    lifts_system: bool = False  # system messages come first if the template needs that
    echo: str | None = None  # text that the response has before the output
    repeats_output: bool = False  # see `CompletionJob`


class _Constrained(NamedTuple):
    """The constraint of the output, and how it is parsed."""

    constraint: Constraint
    parser: ParserConfig | None  # None: the model's text is the content
    reasoning_open: bool | None  # whether the prompt ends within reasoning


class Conversations:
    """Makes jobs of conversations; the same for every dialect."""

    def __init__(
        self,
        limits: InferenceLimits,
        admission: Admission,
        *,
        media: MediaReader | None = None,  # None: with the default limits
        stream_defaults: StreamDefaults = NO_DEFAULTS,
        seals: TextSeals | None = None,  # None: without encryption
    ) -> None:
        self.limits = limits
        self.admission = admission
        self.seals = seals or TextSeals()
        self._media = media or MediaReader()
        self._stream_defaults = stream_defaults

    async def job(self, conversation: Conversation, model: ServingModel) -> CompletionJob:
        """A job that is ready to run, whether the queue has room for it or not.

        Each phase needs the result of the one before: the prompt's length decides the budget, and
        its end whether the output begins with reasoning. Raises for what this model or server does
        not support, under the dialect's names of the fields.
        """
        try:
            prompt = await self._render(conversation, model)
            has_media = prompt.images or prompt.audio_files
            tokens = tokens_with_media(prompt, model) if has_media else len(prompt.token_ids)
            self.limits.check_prompt_tokens(tokens, MESSAGES)
            max_tokens = self._budget(conversation, model, tokens)
            constrained = await _constrain(conversation, model, prompt)
            return self._sample(conversation, model, prompt, max_tokens, constrained)
        except InvalidRequest as error:
            if names := conversation.plan.names:
                raise renamed(error, names) from error
            raise

    async def count(self, conversation: Conversation, model: ServingModel) -> int:
        """The tokens of the prompt, which may exceed the model's context."""
        prompt = await self._render(conversation, model, within_context=False)
        return tokens_with_media(prompt, model)

    async def read_media(self, conversation: Conversation, model: Describes) -> Media:
        """The conversation's media, which may have to be fetched. Raises InvalidRequest."""
        if conversation.items is not None:
            return conversation.items
        return await self._media.read(conversation.media, model) if conversation.media else NO_MEDIA

    async def _render(
        self, conversation: Conversation, model: Renders, *, within_context: bool = True
    ) -> Prompt:
        """Render the conversation with the model's chat template and tokenize it."""
        fields, plan = conversation.fields, conversation.plan
        media = await self.read_media(conversation, model)
        if conversation.media:
            media.check_choices(fields.n or 1)
        lifting: dict[str, Any] = {"lift_system": True} if conversation.lifts_system else {}
        prompt = await model.render_chat(
            conversation.messages,
            media=media.counts if conversation.media else None,
            tools=plan.tools.for_template,
            documents=plan.documents,
            add_generation_prompt=plan.add_generation_prompt and conversation.continued is None,
            continue_final_message=conversation.continued is not None,
            template_kwargs=plan.variables.values,
            add_special_tokens=bool(fields.add_special_tokens),
            truncation=None
            if fields.truncate_prompt_tokens is None
            else truncation(fields, model, output_tokens=plan.max_tokens or 1),
            extra_characters=plan.extra_characters,
            within_context=within_context,
            **lifting,
        )
        return media.beside(prompt) if conversation.media else prompt

    def _budget(
        self, conversation: Conversation, model: Describes, prompt_tokens: int
    ) -> int | None:
        """The maximum output length in tokens; None if neither request nor model limits it."""
        max_tokens, context = conversation.plan.max_tokens, model.facts.max_model_len
        if conversation.plan.shortens_output and max_tokens is not None and context is not None:
            max_tokens = min(max_tokens, max(1, context - prompt_tokens))
        max_tokens = token_budget(
            max_tokens, prompt_tokens=prompt_tokens, context=context, param=MESSAGES
        )
        max_tokens = clamp_max_tokens(max_tokens, model)
        self.limits.check_output_tokens(conversation.fields.n or 1, max_tokens)
        return max_tokens

    def _sample(
        self,
        conversation: Conversation,
        model: ServingModel,
        prompt: Prompt,
        max_tokens: int | None,
        constrained: _Constrained,
    ) -> CompletionJob:
        """Translate sampling fields, and make one generation request for each choice."""
        fields, plan, parser = conversation.fields, conversation.plan, constrained.parser
        n = fields.n or 1
        id = new_id(conversation.id_prefix, conversation.id_separator)
        options = response_options(
            fields,
            model,
            logprobs=plan.logprobs,
            defaults=self._stream_defaults,
            parsed=parser is not None,
        )
        params = _known_params(conversation, model, max_tokens, constrained)
        if params.prompt_logprobs is not None:
            entries = count_prompt_logprobs(params, len(prompt.token_ids), model)
            self.limits.check_prompt_logprobs(entries, "prompt_logprobs")
        first = first_request(id, prompt, params, fields, options, constrained.constraint)
        if plan.names:
            first = replace(first, field_names=renamed_fields(first.field_names, plan.names))
        if parser is not None:
            first = with_parser_needs(first, parser, model)
        elif conversation.repeats_output:
            first = with_counted_relay(first, model)
        return CompletionJob(
            id=id,
            model=model,
            context=current_request(),
            admission=self.admission,
            requests=[first] if n == 1 else _choices(first, n),
            n=n,
            options=options,
            echo=() if conversation.echo is None else [conversation.echo],
            parser=parser,
            tools=plan.tools,
            adjusted=plan.variables.adjusted,
            repeats_output=conversation.repeats_output,
        )


def _known_params(
    conversation: Conversation,
    model: Describes,
    max_tokens: int | None,
    constrained: _Constrained,
) -> SamplingParams:
    """The sampling parameters of an earlier request with this plan, or new ones."""
    plan, reasoning_open = conversation.plan, constrained.reasoning_open
    key = max_tokens, reasoning_open
    params = plan.params.get(key)
    if params is None:
        params = _sampling_params(conversation, model, max_tokens, constrained)
        if reasoning_open in plan.constraints and len(plan.params) < _MAX_PARAMS:
            plan.params[key] = params
    return params


def _sampling_params(
    conversation: Conversation,
    model: Describes,
    max_tokens: int | None,
    constrained: _Constrained,
) -> SamplingParams:
    parsed = constrained.parser is not None
    sampling = SamplingOptions(
        max_tokens=max_tokens,
        logprobs=conversation.plan.logprobs,
        prompt_logprobs=conversation.fields.prompt_logprobs,
        constraint=constrained.constraint,
        special_tokens=parsed and keep_special_tokens(model),
    )
    params = sampling_params(conversation.fields, sampling, model)
    if params.beam_width is not None and parsed:
        raise unsupported("use_beam_search")  # parsers read one sequence after the other
    return params


async def _constrain(conversation: Conversation, model: Renders, prompt: Prompt) -> _Constrained:
    """Decide what the output must match, and how to parse it."""
    plan, continued = conversation.plan, conversation.continued
    tools, variables = plan.tools, plan.variables.values
    parsed = tools.in_use or model.output_format.reasoning  # else the text is the content
    text = None
    if parsed:
        text = prompt_text(prompt, model) if continued is None else continued
    reasoning_open = model.output_format.reasoning_open(
        text, continued=continued is not None, variables=variables
    )
    constraint = plan.constraints.get(reasoning_open)
    if constraint is None:
        build = prepare_constraint(
            conversation.fields,
            tools,
            model.output_format,
            reasoning_open=reasoning_open,
            supports_tags=model.supports("structured_outputs.structural_tag"),
        )
        constraint = await asyncio.to_thread(build) if is_slow_to_build(tools) else build()
        tag = None if constraint.structured is None else constraint.structured.structural_tag
        short = tag is None or len(tag) <= _MAX_KEPT_TAG
        if short and not plugin.installed():  # a plug-in may look at the messages
            constraint = plan.constraints.setdefault(reasoning_open, constraint)
    if not parsed:
        return _Constrained(constraint, None, reasoning_open)
    parser = parser_config(
        tools, constraint, text, model, variables, continued=continued is not None
    )
    if not plan.include_reasoning:
        parser = replace(parser, include_reasoning=False)
    return _Constrained(constraint, parser, reasoning_open)


def _choices(first: GenerationRequest, n: int) -> list[GenerationRequest]:
    """One request per choice, or one beam search for all. Only the first asks for the prompt's log
    probabilities.
    """
    params = first.sampling_params
    if params.prompt_logprobs is None or params.beam_width is not None:
        return choice_requests(first, n)
    others = replace(first, sampling_params=replace(params, prompt_logprobs=None))
    return [first, *choice_requests(others, n)[1:]]
