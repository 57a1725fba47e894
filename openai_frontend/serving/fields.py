"""Request fields that the schemas do not hold: which are refused, which pass, what the rest is.

Both tables are data: a field that becomes real leaves its table and enters the schema.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from openai_frontend.errors import InvalidRequest
from schemas.sampling import SamplingFields, StreamOptions

logger = logging.getLogger(__name__)

UnknownFieldsPolicy = Literal["warn", "ignore", "reject"]
Neutral = Mapping[str, tuple[Any, ...]]  # field -> the values, besides null, that ask for nothing

_MAX_WARNED = 256  # distinct names that one process warns of

# OpenAI's fields that this version cannot honour, and vLLM's that would change the answer.
_NEUTRAL_IN_BOTH: Neutral = {
    "logit_bias": ({},),
    "store": (False,),
    # vLLM's
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}

NEUTRAL_IN_CHAT: Neutral = {
    **_NEUTRAL_IN_BOTH,
    "audio": (),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"], []),
    "moderation": (),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "mm_processor_kwargs": ({},),
}

NEUTRAL_IN_COMPLETIONS: Neutral = {
    **_NEUTRAL_IN_BOTH,
    "logprobs": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "max_completion_tokens": (),
}

# OpenAI's fields that promise nothing about the answer.
ACCEPTED = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)


class FieldPolicy:
    """Answers for the fields that a schema does not hold. One object for the whole process."""

    def __init__(self, unknown_fields: UnknownFieldsPolicy) -> None:
        self._unknown_fields = unknown_fields
        self._warned: set[str] = set()

    def check(self, request: SamplingFields, neutral: Neutral) -> None:
        """Raises for a field that cannot be honoured: dropping it would be a lie to the caller."""
        if request.stream_options is not None:
            self._check_stream_options(request, request.stream_options)
        fields = request.model_extra
        if not fields:
            return
        for name, value in fields.items():
            if name in neutral:
                _refuse_unless_neutral(name, value, neutral[name])
        self.unknown(name for name in fields if name not in neutral and name not in ACCEPTED)

    def _check_stream_options(self, request: SamplingFields, options: StreamOptions) -> None:
        if not request.stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise InvalidRequest(message, param="stream_options")
        self.unknown(f"stream_options.{name}" for name in options.model_extra or ())

    def unknown(self, names: Iterable[str]) -> None:
        """What the setting `unknown_fields` says of names that nobody knows."""
        if self._unknown_fields == "ignore":
            return
        for name in names:
            if self._unknown_fields == "reject":
                name = name[:64]
                message = f"Unknown parameter: '{name}'."
                raise InvalidRequest(message, param=name, code="unknown_parameter")
            self._warn(name[:64])

    def _warn(self, name: str) -> None:
        if name in self._warned or len(self._warned) >= _MAX_WARNED:
            return
        self._warned.add(name)
        logger.warning("ignoring the unknown request field %r (told once for each name)", name)


def _refuse_unless_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    # `1 == True` in Python, so the types must match too, numbers aside from booleans.
    same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
    if value is None or any(same):
        return
    message = f"Unsupported parameter: '{name}' is not supported by this server."
    raise InvalidRequest(message, param=name, code="unsupported_parameter")
