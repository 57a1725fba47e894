"""Policy for request fields that the schemas do not have: reject, accept or report them.

The tables are data. A field that becomes supported moves from its table to the schema.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from openai_frontend.errors import InvalidRequest
from schemas.messages import JSONOutputFormat, OutputConfig, ThinkingEnabled
from schemas.response_format import JSONSchema, StructuredOutputsParam
from schemas.sampling import RequestFields, SamplingFields, StreamOptions

logger = logging.getLogger(__name__)

# Anything else may be a misplaced prompt, which must not be logged.
_NAME = re.compile(r"(?:[A-Za-z0-9_.-]|\[\])+")
_INDEX = re.compile(r"\[[0-9]+\]")

UnknownFieldsPolicy = Literal["warn", "ignore", "reject"]
Neutral = Mapping[str, tuple[Any, ...]]  # field -> default values besides null, which are accepted

_MAX_WARNED = 256  # distinct names that one process warns about

# A guard that is ignored would pass what it should block
NO_GUARD: Neutral = {"moderation": ()}

# Constraints that other APIs of this server have: a client expects the output to match
_NO_CONSTRAINTS: Neutral = {
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("regex", "ebnf"), ()),
}

# Unsupported fields of OpenAI's, and of vLLM's that would change the output.
_NEUTRAL_IN_BOTH: Neutral = {
    # vLLM's
    "ec_transfer_params": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "mm_payload": (),
    "prompt_embeds": (),
    "return_mm_kwargs": (False,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "watermarking": (False,),
}

NEUTRAL_IN_CHAT: Neutral = {
    **_NEUTRAL_IN_BOTH,
    "audio": (),
    "web_search_options": (),
    # vLLM's
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}

NEUTRAL_IN_RESPONSES: Neutral = {
    **NEUTRAL_IN_CHAT,
    **NO_GUARD,
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "prompt": (),
}

# Fields of /v1/responses on which a client expects the answers to depend
NEUTRAL_IN_DECISIONS: Neutral = {
    **NO_GUARD,
    "conversation": (),
    "instructions": ("",),
    "previous_response_id": (),
    "stream": (False,),
    "tools": ([],),
}

# The others are beta fields that would change the output
NEUTRAL_IN_MESSAGES: Neutral = {
    **NO_GUARD,
    **_NO_CONSTRAINTS,
    "compaction": (),
    "fallbacks": ([],),
    "mcp_servers": ([],),
    "output_format": (),  # of older SDKs: `output_config.format` is honoured
    "thread": (),
}

NEUTRAL_IN_COMPLETIONS: Neutral = {
    **_NEUTRAL_IN_BOTH,
    **NO_GUARD,
    "max_completion_tokens": (),
}

# Fields of vLLM's pooling models
_NEUTRAL_IN_POOLING: Neutral = {
    **NO_GUARD,
    "cache_salt": (),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "padding": ("do_not_pad",),
    "priority": (0,),
}

NEUTRAL_IN_CLASSIFICATION = _NEUTRAL_IN_POOLING

NEUTRAL_IN_POOLING_TASKS: Neutral = {
    **_NEUTRAL_IN_POOLING,
    "data": (),  # of a plug-in
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "normalize": (),
}

NEUTRAL_IN_TEXTS_EMBED: Neutral = {**NO_GUARD, "prompt_name": ()}  # text-embeddings-inference's

NEUTRAL_IN_EMBEDDINGS: Neutral = {
    **NEUTRAL_IN_POOLING_TASKS,
    "use_activation": (True,),
    "normalize": (True,),
}

NEUTRAL_IN_SCORING: Neutral = {
    **_NEUTRAL_IN_POOLING,
    "use_activation": (True,),
    "add_special_tokens": (True,),
    "chat_template_kwargs": ({},),
    "instruction": ("",),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "rank_fields": (["text"],),  # Cohere's
    # text-embeddings-inference's
    "raw_scores": (False,),
}

# Values are texts: these requests are forms. The first are OpenAI's, the others vLLM's.
NEUTRAL_IN_TRANSCRIPTIONS: Neutral = {
    **NO_GUARD,
    "keywords": (),
    "known_speaker_names": (),
    "known_speaker_references": (),
    "languages": (),
    "hotwords": ("",),
    "include": (),  # of a translation, as the next two
    "timestamp_granularities": (),
    "chunking_strategy": ("auto",),
    "length_penalty": ("1", "1.0"),
    "n": ("1",),
    "stream_continuous_usage_stats": ("false", "False"),
    "stream_include_usage": ("true", "True", "false", "False"),  # a stream always has it
    "to_language": ("en",),
    "use_beam_search": ("false", "False"),
    "vllm_xargs": (),
}

NEUTRAL_IN_SPEECH: Neutral = NO_GUARD

# Object fields -> their members. A `schema` beside the type json_object, which other servers
# accept, is rejected with its format, not ignored.
_WITH_MEMBERS: Mapping[str, frozenset[str]] = {
    "prediction": frozenset({"type", "content"}),
    "prompt_cache_options": frozenset(),
    "repetition_detection": frozenset(),
    "response_format": frozenset(
        {"type", "json_schema", "format", "structures", "triggers", "schema"}
    ),
    "structured_outputs": frozenset(StructuredOutputsParam.__annotations__),
    # of Responses and Messages, which check these themselves
    "text.format": frozenset({"type", *JSONSchema.__annotations__}),
    "output_config": frozenset(OutputConfig.__annotations__),
    "output_config.format": frozenset(JSONOutputFormat.__annotations__),
    "thinking": frozenset(ThinkingEnabled.__annotations__),
}


class FieldPolicy:
    """Applies the setting `unknown_fields`. One per process, so that each warning appears once."""

    def __init__(self, unknown_fields: UnknownFieldsPolicy) -> None:
        self._unknown_fields = unknown_fields
        self._warned: set[str] = set()
        self._adjusted: set[tuple[str, str]] = set()  # fields and models

    def check(self, request: SamplingFields, neutral: Neutral) -> None:
        """Raise InvalidRequest for an unsupported field rather than ignore it silently."""
        if request.stream_options is not None:
            self._check_stream_options(request, request.stream_options)
        if request.stream and request.prompt_logprobs is not None:
            message = "Unsupported parameter: 'prompt_logprobs' cannot be used with 'stream'."
            raise InvalidRequest(message, param="prompt_logprobs", code="unsupported_parameter")
        self.check_extra(request, neutral)
        if with_members := request.model_fields_set & _WITH_MEMBERS.keys():
            declared = type(request).model_fields.keys()  # `check_extra` reports the others
            self._check_members(request, with_members & declared)

    def _check_members(self, request: SamplingFields, fields: Iterable[str]) -> None:
        """Report unknown names within object fields."""
        for field in sorted(fields):
            self.check_members(getattr(request, field), field)
        form: Mapping[str, Any] = request.response_format or {"type": "text"}
        schema = form.get("json_schema") or {}
        unknown = schema.keys() - JSONSchema.__annotations__.keys()
        self.unknown(f"response_format.json_schema.{name}" for name in sorted(unknown))

    def check_members(self, given: Mapping[str, Any] | BaseModel | None, place: str) -> None:
        """Report unknown names within an object field; `_WITH_MEMBERS` has the known ones of
        mappings.
        """
        if given is None:
            return
        if isinstance(given, BaseModel):
            names: Iterable[str] = given.model_extra or ()
        else:
            names = given.keys() - _WITH_MEMBERS[place]
        self.unknown(f"{place}.{name}" for name in sorted(names))

    def check_extra(self, request: RequestFields, neutral: Neutral) -> None:
        """Like `check`, for a request that never streams."""
        fields = request.model_extra
        if not fields:
            return
        for name, value in fields.items():
            if name in neutral:
                _refuse_unless_neutral(name, value, neutral[name])
        self.unknown(name for name in fields if name not in neutral)

    def _check_stream_options(self, request: SamplingFields, options: StreamOptions) -> None:
        if not request.stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise InvalidRequest(message, param="stream_options")
        self.unknown(f"stream_options.{name}" for name in options.model_extra or ())

    def unknown(self, names: Iterable[str]) -> None:
        """Ignore, log or reject unknown names, as the setting `unknown_fields` says."""
        if self._unknown_fields == "ignore":
            return
        for name in names:
            if self._unknown_fields == "reject":
                name = name[:64]
                message = f"Unknown parameter: '{name}'."
                raise InvalidRequest(message, param=name, code="unknown_parameter")
            self._warn(name[:64])

    def adjusted(self, field: str, used: str, model: str) -> None:
        """Report a hint that was replaced or ignored. Raises if the setting is "reject"."""
        if self._unknown_fields == "reject":
            message = f"Unsupported value: '{field}' is not supported with this model."
            raise InvalidRequest(message, param=field, code="unsupported_value")
        if self._unknown_fields == "warn" and (field, model) not in self._adjusted:
            self._adjusted.add((field, model))
            logger.warning(
                "model %s: its chat template does not support a request's %s; used=%s (logged once "
                "for each model and field)",
                model,
                field,
                used,
            )

    def _warn(self, name: str) -> None:
        name = _INDEX.sub("[]", name)  # the same member of any message and part
        if name in self._warned or len(self._warned) >= _MAX_WARNED:
            return
        self._warned.add(name)
        shown = name if _NAME.fullmatch(name) else "(not a name)"
        logger.warning("ignored unknown request field; name=%r (logged once per name)", shown)


def _refuse_unless_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    # `1 == True` in Python, so booleans must be distinguished from numbers.
    same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
    if value is None or any(same):
        return
    message = f"Unsupported parameter: '{name}' is not supported by this server."
    raise InvalidRequest(message, param=name, code="unsupported_parameter")
