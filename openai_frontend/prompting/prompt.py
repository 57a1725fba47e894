"""Builds prompts: messages or text in, text and token ids out. Blocking: run it in the pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.media.modalities import AudioFile, ImageInput
from openai_frontend.prompting import fill_in_the_middle, media_placeholder
from openai_frontend.prompting.chat_template import ChatTemplate, TemplateArguments
from openai_frontend.prompting.media_placeholder import MediaPlaceholder
from openai_frontend.prompting.message_shape import Message
from openai_frontend.prompting.segment_cache import SegmentCache, SegmentedEncoding
from openai_frontend.prompting.special_tokens import SpecialTokenEscaper
from openai_frontend.prompting.token_bytes import TokenBytes
from openai_frontend.prompting.tokenizer import (
    MANY_IDS,
    TokenIds,
    Tokenizer,
    Truncation,
    pack,
)
from openai_frontend.runtime.utf8 import well_formed

if TYPE_CHECKING:
    from openai_frontend.prompting.tokenizer import Encoding

_PREVIOUS, _DECODER_CONTEXT = "<|startofprev|>", 448  # Whisper's
_BATCH = 128  # texts per batch, whose encodings stay in memory until they are prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """A model's input, as text and as token ids."""

    text: str | None  # None if the client sent token ids, or the text was truncated
    token_ids: Sequence[
        int
    ]  # a list; a long prompt is an array, which converts to a tensor for free
    images: Sequence[ImageInput] = ()  # in the order of their placeholders
    audio_files: Sequence[AudioFile] = ()  # in the order of theirs


class TokenizeKwargs(TypedDict, total=False):
    """The optional fields of `TokenizeOptions`."""

    add_special_tokens: bool
    truncation: Truncation | None
    within_context: bool


@dataclass(slots=True, kw_only=True)
class TokenizeOptions:
    """How a text is tokenized."""

    param: str  # the request's field, for errors
    add_special_tokens: bool = True
    truncation: Truncation | None = None  # None: a text that is too long is an error
    within_context: bool = True  # False: up to MAX_COUNTED_TOKENS, for counting only
    # Kind of media -> the items whose placeholders the text must have; None: none
    media: Mapping[str, int] | None = None


# Limit for counting only: writing a million ids blocks the event loop for 20 ms.
MAX_COUNTED_TOKENS = 1_000_000

_CHAT_OPTIONS = TokenizeOptions(add_special_tokens=False, param="messages")
_TEXT_OPTIONS = TokenizeOptions(add_special_tokens=True, param="prompt")


class PromptBuilder:
    """A model's tokenizer with its chat templates."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,  # overrides the tokenizer's own
        max_model_len: int | None = None,
        allow_special_tokens: bool = False,  # in clients' text; if False they stay text
    ) -> None:
        sources = {"default": chat_template} if chat_template else tokenizer.chat_templates
        self._tokenizer = tokenizer
        self.inline_characters = tokenizer.inline_characters
        self._segments = SegmentCache(tokenizer)
        self._token_bytes = TokenBytes(tokenizer.fast)
        self._guarded = [] if allow_special_tokens else tokenizer.all_special_tokens()
        self._escaper = SpecialTokenEscaper(self._guarded)
        self._templates = {
            purpose: ChatTemplate(source, tokenizer.special_tokens)
            for purpose, source in sources.items()
        }
        self._max_model_len = max_model_len
        self._media: list[MediaPlaceholder] = []  # of the kinds that the model takes
        self._counts_in_text = False

    def take_media(
        self, kind: str, default: str | None, *, as_text: bool
    ) -> MediaPlaceholder | None:
        """Render images or audio from now on. Returns None if no template writes a placeholder and
        the engine has no `default`.

        `as_text`: the model tokenizes prompts itself, so placeholders are counted in the text.
        """
        templates = self._templates.values()
        found = (media for each in templates if (media := each.media(kind)))
        written = next(found, default)
        if not written or not templates:
            return None
        for template in templates:
            if not template.media(kind):
                template.write_media_as(kind, written)
        added = self._tokenizer.fast.get_added_tokens_decoder()
        placeholder = media_placeholder.of_text(kind, written, added=added, encode=self.ids)
        self._media.append(placeholder)
        self._counts_in_text = as_text
        placeholders = [text for each in self._media for text in self._guarded_texts(each)]
        self._escaper = SpecialTokenEscaper([*self._guarded, *placeholders])
        return placeholder

    def _guarded_texts(self, media: MediaPlaceholder) -> list[str]:
        """Special tokens that must not be interpreted in clients' text."""
        tokens = map(self._tokenizer.fast.id_to_token, media.token_ids)
        return [token for token in tokens if token] or [media.text.strip()]

    def check_placeholders(
        self, token_ids: Sequence[int], media: Mapping[str, int], param: str
    ) -> None:
        """Raise InvalidRequest unless the ids have a placeholder for each item."""
        for each in self._media:
            each.check(None, token_ids, media.get(each.kind, 0), param)

    @property
    def can_chat(self) -> bool:
        """Whether there is a general chat template, not only ones for a single purpose."""
        return "default" in self._templates

    @property
    def vocabulary(self) -> int:
        """A number for what `token_bytes` returns, which no other tokenizer has."""
        return self._token_bytes.vocabulary

    @property
    def document_start(self) -> int | None:
        """The BOS token, or else EOS; None if there is neither."""
        names = self._tokenizer.special_tokens
        token = names.get("bos_token") or names.get("eos_token")
        return None if token is None else self._tokenizer.fast.token_to_id(token)

    def template_knows(self, name: str) -> bool:
        """Whether one of the templates uses this variable."""
        return any(template.knows(name) for template in self._templates.values())

    def template_accepts(self, name: str, value: str) -> bool:
        """Whether every template that uses this variable renders with the value."""
        known = [template for template in self._templates.values() if template.knows(name)]
        return all(template.accepts(name, value) for template in known)

    def chat(
        self,
        messages: Sequence[Message],
        options: TokenizeOptions = _CHAT_OPTIONS,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt:
        """Rendered with the model's template, which writes the special tokens itself."""
        template = self._template(
            tools=bool(rendering.get("tools")), documents=bool(rendering.get("documents"))
        )
        for message in messages:  # `any` would take a call for each
            if "tool_calls" in message:
                messages = template.with_parsed_arguments(messages)
                break
        mark = self._escaper.mark([messages, rendering], messages)
        if mark is None:
            # A call's arguments may have half of a character
            text = well_formed(template.render(messages, **rendering))
            if options.add_special_tokens or not self._segments.enabled:
                return self.completion(text, options)
            return self._prompt([text], self._segments.encode(text), options)
        marked = template.render(
            self._escaper.marked_messages(messages, mark),
            **cast("TemplateArguments", self._escaper.marked(rendering, mark)),
        )
        return self._pieces(well_formed(marked).split(mark), options)

    def _pieces(self, pieces: Sequence[str], options: TokenizeOptions) -> Prompt:
        special = options.add_special_tokens
        encoding = self._tokenizer.encode_pieces(pieces, add_special_tokens=special)
        return self._prompt(pieces, encoding, options)

    def completion(self, text: str, options: TokenizeOptions = _TEXT_OPTIONS) -> Prompt:
        """The text as is, with the special tokens that the tokenizer adds (such as BOS)."""
        encoding = self._tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
        return self._prompt([text], encoding, options)

    def decoder_prompt(self, start: str, previous: str) -> Prompt:
        """Special tokens, after the end of a text that precedes the audio. Like OpenAI's, that end
        has at most half of the context.
        """
        ids = [*self.ids(start)]
        if not previous:
            return Prompt(start, ids)
        spaced = f" {previous.strip()}"
        mark = self._escaper.mark([spaced])
        pieces = [spaced] if mark is None else self._escaper.marked(spaced, mark).split(mark)
        encoding = self._tokenizer.encode_pieces(pieces, add_special_tokens=False)
        room = (self._max_model_len or _DECODER_CONTEXT) // 2 - 1
        return Prompt(None, [*self.ids(_PREVIOUS), *encoding.ids[-room:], *ids])

    def completions(
        self, texts: Sequence[str], options_list: Sequence[TokenizeOptions]
    ) -> list[Prompt]:
        """A prompt for each text. Their options differ only in `param`."""
        special = options_list[0].add_special_tokens
        prompts = []
        for start in range(0, len(texts), _BATCH):
            some = texts[start : start + _BATCH]
            encodings = self._tokenizer.encode_all(some, add_special_tokens=special)
            each = zip(some, encodings, options_list[start:], strict=False)
            prompts += [self._prompt([text], encoding, options) for text, encoding, options in each]
        return prompts

    def _prompt(
        self,
        pieces: Sequence[str],
        encoding: "Encoding | SegmentedEncoding",
        options: TokenizeOptions,
    ) -> Prompt:
        special, cut = options.add_special_tokens, options.truncation
        if cut is not None and len(encoding) > cut.tokens:
            kept = self._tokenizer.cut(pieces, cut, add_special_tokens=special)
            if self._media:
                self.check_placeholders(kept, options.media or {}, options.param)
            return Prompt(None, _packed(kept))
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        if options.within_context:
            self._check_length(len(encoding), options.param)
        elif len(encoding) > MAX_COUNTED_TOKENS:
            message = f"Invalid '{options.param}': it has more than {MAX_COUNTED_TOKENS} tokens."
            raise InvalidRequest(message, param=options.param, code="string_above_max_length")
        ids = list(encoding.ids) if not options.within_context else encoding.ids
        if self._media:
            exact, items = None if self._counts_in_text else ids, options.media or {}
            for each in self._media:
                each.check(text, exact, items.get(each.kind, 0), options.param)
        return Prompt(text, _packed(ids) if options.within_context else ids)  # JSON needs a list

    def pair(
        self,
        first: str,
        second: str,
        *,
        params: tuple[str, str],
        truncation: Truncation | None = None,
    ) -> tuple[list[int], list[int]]:
        """Both texts in one sequence, for a cross-encoder: ids, and each token's type. Only the
        second text is truncated.
        """
        encoding = self._tokenizer.encode_pair(first, second, truncation)
        if truncation is not None and len(encoding) > truncation.tokens:
            message = f"Invalid '{params[0]}': it alone has more than {truncation.tokens} tokens."
            raise InvalidRequest(message, param=params[0], code="string_above_max_length")
        if self._max_model_len is not None and len(encoding) > self._max_model_len:
            texts = encoding.sequence_ids
            longer = params[0] if texts.count(0) > texts.count(1) else params[1]
            self._check_length(len(encoding), longer)
        return encoding.ids, encoding.type_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary spells them."""
        return [self._tokenizer.fast.id_to_token(token_id) for token_id in token_ids]

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token; None for an unknown id."""
        return self._token_bytes.get(token_id)

    def ids(self, text: str) -> Sequence[int]:
        """The tokens of a text, without special tokens around it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def token_text(self, token_id: int) -> str | None:
        """The text of one token; None for an incomplete character or an unknown id."""
        raw = self._token_bytes.get(token_id)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError:
            return None

    def unprefixed(self, text: str) -> str:
        """The text without the special tokens that the tokenizer itself adds at its start."""
        return text.removeprefix(self._own_prefix)

    def plain(self, text: str) -> str:
        """The text without special tokens."""
        return self.decode(self.ids(text), skip_special_tokens=True)

    @cached_property
    def _own_prefix(self) -> str:
        """Token ids that the tokenizer adds before any text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        added = whole[: whole.index(bare[0])] if bare else []
        return "".join(self._tokenizer.fast.id_to_token(token_id) or "" for token_id in added)

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        """The prompt for a code model to fill the gap. Raises InvalidRequest for other models."""
        infill = fill_in_the_middle.detect(self._tokenizer.has_token)
        if infill is None:
            message = "Unsupported parameter: 'suffix' is not supported with this model."
            raise InvalidRequest(message, param="suffix", code="unsupported_parameter")
        return infill.prompt(prefix, suffix)

    def _template(self, *, tools: bool, documents: bool) -> ChatTemplate:
        """By purpose, as `transformers` names the templates of models that have several."""
        wanted = ("tool_use", tools), ("rag", documents), ("default", True)
        for purpose, needed in wanted:
            if needed and purpose in self._templates:
                return self._templates[purpose]
        message = "This model has no chat template."
        raise InvalidRequest(message, param="model", code="unsupported_model")

    def _check_length(self, tokens: int, param: str) -> None:
        """Runs before ids become a list, which costs 20 ns per id, holding the GIL."""
        limit = self._max_model_len
        if limit is not None and tokens > limit:
            error = ContextLengthExceeded(
                f"This model's maximum context length is {limit} tokens. "
                f"However, your {param} resulted in {tokens} tokens. "
                f"Please reduce the length of the {param}.",
                param=param,
            )
            error.prompt_tokens, error.context = tokens, limit
            raise error


def _packed(token_ids: list[int] | TokenIds) -> Sequence[int]:
    """Many ids as an array."""
    if isinstance(token_ids, list) and len(token_ids) >= MANY_IDS:
        return pack(token_ids)
    return token_ids
