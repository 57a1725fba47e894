"""Builds prompts: messages or text in, text and token ids out. Blocks: run it in the pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.prompting.chat_template import ChatTemplate, Message
from openai_frontend.prompting.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, as text and as the ids of its tokens."""

    text: str | None  # None where the client sent token ids
    token_ids: list[int]


class PromptBuilder:
    """A model's tokenizer with its chat templates."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,  # replaces the tokenizer's own
        max_model_len: int | None = None,
    ) -> None:
        sources = {"default": chat_template} if chat_template else tokenizer.chat_templates
        self._tokenizer = tokenizer
        self._templates = {
            purpose: ChatTemplate(source, tokenizer.special_tokens)
            for purpose, source in sources.items()
        }
        self._max_model_len = max_model_len

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Rendered with the model's template, which writes the special tokens itself."""
        text = self._template(bool(tools)).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return self._prompt(text, add_special_tokens=False, param="messages")

    def completion(self, text: str) -> Prompt:
        """The text as it is, with the special tokens that the tokenizer adds (such as BOS)."""
        return self._prompt(text, add_special_tokens=True, param="prompt")

    def _template(self, tools: bool) -> ChatTemplate:
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise InvalidRequest("This model has no chat template.", param="model")
        return template

    def _prompt(self, text: str, *, add_special_tokens: bool, param: str) -> Prompt:
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        limit = self._max_model_len
        # before the ids become a list, which takes 20 ns each with the GIL held
        if limit is not None and len(encoding) > limit:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {limit} tokens. "
                f"However, your {param} resulted in {len(encoding)} tokens. "
                f"Please reduce the length of the {param}.",
                param=param,
            )
        return Prompt(text, encoding.ids)
