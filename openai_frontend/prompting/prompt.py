"""Builds prompts: messages or text in, text and token ids out. Blocks: run it in the pool."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.prompting import fill_in_the_middle
from openai_frontend.prompting.chat_template import ChatTemplate, Message, TemplateArguments
from openai_frontend.prompting.special_tokens import SpecialTokenEscaper
from openai_frontend.prompting.token_bytes import TokenBytes
from openai_frontend.prompting.tokenizer import Tokenizer, Truncation

if TYPE_CHECKING:
    from tokenizers import Encoding

_TOGETHER = 128  # texts, whose encodings are kept until they are prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, as text and as the ids of its tokens."""

    text: str | None  # None where the client sent token ids, or the text was cut
    token_ids: Sequence[int]  # a list; an array where they are many, which is as good as a tensor


class TokenizeKwargs(TypedDict, total=False):
    """What of a `TokenizeOptions` may be left out."""

    add_special_tokens: bool
    truncation: Truncation | None
    within_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """How a text becomes tokens."""

    param: str  # the field that the text is from
    add_special_tokens: bool = True
    truncation: Truncation | None = None  # None: a text that is too long is refused
    within_context: bool = True  # False: up to MAX_COUNTED_TOKENS tokens, which no model is to read


# Of a text that no model reads: a million ids hold the event loop for 20 ms when they are written
MAX_COUNTED_TOKENS = 1_000_000

_AS_RENDERED = TokenizeOptions(add_special_tokens=False, param="messages")
_AS_WRITTEN = TokenizeOptions(add_special_tokens=True, param="prompt")


class PromptBuilder:
    """A model's tokenizer with its chat templates."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,  # replaces the tokenizer's own
        max_model_len: int | None = None,
        allow_special_tokens: bool = False,  # in what clients write; else they stay text
    ) -> None:
        sources = {"default": chat_template} if chat_template else tokenizer.chat_templates
        self._tokenizer = tokenizer
        self._token_bytes = TokenBytes(tokenizer.fast)
        guarded = () if allow_special_tokens else tokenizer.all_special_tokens()
        self._foreign = SpecialTokenEscaper(guarded)
        self._templates = {
            purpose: ChatTemplate(source, tokenizer.special_tokens)
            for purpose, source in sources.items()
        }
        self._max_model_len = max_model_len

    @property
    def can_chat(self) -> bool:
        """Whether there is a template for any chat, not for those of one purpose alone."""
        return "default" in self._templates

    @property
    def document_start(self) -> int | None:
        """The token that stands before a text, or else between two; None where there is neither."""
        names = self._tokenizer.special_tokens
        token = names.get("bos_token") or names.get("eos_token")
        return None if token is None else self._tokenizer.fast.token_to_id(token)

    def template_knows(self, name: str) -> bool:
        """Whether one of the templates takes something of this name."""
        return any(template.knows(name) for template in self._templates.values())

    def template_accepts(self, name: str, value: str) -> bool:
        """Whether each of the templates that take something of this name renders with the value."""
        known = [template for template in self._templates.values() if template.knows(name)]
        return all(template.accepts(name, value) for template in known)

    def chat(
        self,
        messages: Sequence[Message],
        reading: TokenizeOptions = _AS_RENDERED,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt:
        """Rendered with the model's template, which writes the special tokens itself."""
        template = self._template(
            tools=bool(rendering.get("tools")), documents=bool(rendering.get("documents"))
        )
        mark = self._foreign.mark([messages, rendering])
        if mark is None:
            return self.completion(template.render(messages, **rendering), reading)
        marked = template.render(
            self._foreign.marked(messages, mark),
            **cast("TemplateArguments", self._foreign.marked(rendering, mark)),
        )
        return self._pieces(marked.split(mark), reading)

    def _pieces(self, pieces: Sequence[str], reading: TokenizeOptions) -> Prompt:
        special = reading.add_special_tokens
        encoding = self._tokenizer.encode_pieces(pieces, add_special_tokens=special)
        return self._prompt(pieces, encoding, reading)

    def completion(self, text: str, reading: TokenizeOptions = _AS_WRITTEN) -> Prompt:
        """The text as it is, with the special tokens that the tokenizer adds (such as BOS)."""
        encoding = self._tokenizer.encode(text, add_special_tokens=reading.add_special_tokens)
        return self._prompt([text], encoding, reading)

    def completions(
        self, texts: Sequence[str], readings: Sequence[TokenizeOptions]
    ) -> list[Prompt]:
        """A prompt for each text; their readings differ in what they call it alone."""
        special = readings[0].add_special_tokens
        prompts = []
        for start in range(0, len(texts), _TOGETHER):
            some = texts[start : start + _TOGETHER]
            encodings = self._tokenizer.encode_all(some, add_special_tokens=special)
            each = zip(some, encodings, readings[start:], strict=False)
            prompts += [self._prompt([text], encoding, reading) for text, encoding, reading in each]
        return prompts

    def _prompt(
        self, pieces: Sequence[str], encoding: "Encoding", reading: TokenizeOptions
    ) -> Prompt:
        special, cut = reading.add_special_tokens, reading.truncation
        if cut is not None and len(encoding) > cut.tokens:
            return Prompt(
                None, _packed(self._tokenizer.cut(pieces, cut, add_special_tokens=special))
            )
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        if reading.within_context:
            self._check_length(len(encoding), reading.param)
        elif len(encoding) > MAX_COUNTED_TOKENS:
            message = f"Invalid '{reading.param}': it has more than {MAX_COUNTED_TOKENS} tokens."
            raise InvalidRequest(message, param=reading.param, code="string_above_max_length")
        else:
            return Prompt(text, encoding.ids)  # it goes back as JSON, which has no arrays of C's
        return Prompt(text, _packed(encoding.ids))

    def pair(self, first: str, second: str, *, param: str) -> tuple[list[int], list[int]]:
        """Both in one sequence, as a cross-encoder reads them: ids, and each token's part."""
        encoding = self._tokenizer.encode_pair(first, second)
        self._check_length(len(encoding), param)
        return encoding.ids, encoding.type_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary spells them."""
        return [self._tokenizer.fast.id_to_token(token_id) for token_id in token_ids]

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token. None for an id that the vocabulary does not hold."""
        return self._token_bytes.get(token_id)

    def ids(self, text: str) -> Sequence[int]:
        """The tokens of a text, without special tokens around it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def token_text(self, token_id: int) -> str | None:
        """The text of one token; None where it is a part of a character, or there is no such
        token.
        """
        raw = self._token_bytes.get(token_id)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError:
            return None

    def unprefixed(self, text: str) -> str:
        """The text without the special tokens at its start that the tokenizer adds by itself."""
        return text.removeprefix(self._own_prefix)

    def plain(self, text: str) -> str:
        """The text without the special tokens in it."""
        return self.decode(self.ids(text), skip_special_tokens=True)

    @cached_property
    def _own_prefix(self) -> str:
        """What the tokenizer puts before any text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        added = whole[: whole.index(bare[0])] if bare else []
        return "".join(self._tokenizer.fast.id_to_token(token_id) or "" for token_id in added)

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        """The prompt by which a code model fills the gap. Raises where it is no such model."""
        family = fill_in_the_middle.family(self._tokenizer.holds)
        if family is None:
            message = "Unsupported parameter: 'suffix' is not supported with this model."
            raise InvalidRequest(message, param="suffix", code="unsupported_parameter")
        return family.prompt(prefix, suffix)

    def _template(self, *, tools: bool, documents: bool) -> ChatTemplate:
        """By purpose, as `transformers` names the templates of models that have several."""
        wanted = ("tool_use", tools), ("rag", documents), ("default", True)
        for purpose, needed in wanted:
            if needed and purpose in self._templates:
                return self._templates[purpose]
        message = "This model has no chat template."
        raise InvalidRequest(message, param="model", code="unsupported_model")

    def _check_length(self, tokens: int, param: str) -> None:
        """Before ids become a list, which takes 20 ns each with the GIL held."""
        limit = self._max_model_len
        if limit is not None and tokens > limit:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {limit} tokens. "
                f"However, your {param} resulted in {tokens} tokens. "
                f"Please reduce the length of the {param}.",
                param=param,
            )


_MANY_IDS = 8192


def _packed(token_ids: list[int]) -> Sequence[int]:
    """Many ids as int32: 13 ns each that the event loop would else take to make a tensor of them.

    In steps, for each one holds the GIL.
    """
    if len(token_ids) < _MANY_IDS:
        return token_ids
    packed = array("i")
    for start in range(0, len(token_ids), _MANY_IDS):
        packed.extend(token_ids[start : start + _MANY_IDS])
    return packed
