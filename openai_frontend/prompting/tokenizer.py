"""A Hugging Face tokenizer from a local folder, its special tokens in what clients write, and the
threads that run it.

Never downloads, never runs code found there.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import orjson

from openai_frontend.errors import InvalidRequest, ModelUnavailable, ServerOverloaded, caught

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as FastTokenizer

Result = TypeVar("Result")

# Shorter prompts are built on the event loop, where they take 0.1 to 0.5 ms; a thread adds 0.1 ms
# of CPU (docs/decisions/0008).
INLINE_CHARACTERS = 2048

MAX_SPECIAL_TOKENS = 1024  # per request: each of their characters is tokenized separately


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, and on which side the rest is cut (vLLM's
    `truncate_prompt_tokens`).
    """

    tokens: int
    side: Literal["left", "right"]

    def kept(self, token_ids: Sequence[int]) -> list[int]:
        """The remaining tokens; a shorter prompt stays unchanged."""
        if len(token_ids) <= self.tokens:
            return list(token_ids)
        cut = token_ids[-self.tokens :] if self.side == "left" else token_ids[: self.tokens]
        return list(cut)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A fast tokenizer and the chat settings of its folder."""

    fast: "FastTokenizer"
    chat_templates: Mapping[str, str]  # by purpose: "default", "tool_use", ...
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ...: variables of templates

    def encode(self, text: str, *, add_special_tokens: bool) -> "Encoding":
        """Its length is the number of tokens, its `ids` their list.

        `encode_batch_fast` releases the GIL, keeps no offsets, and its result is freed 20 times
        faster than that of `encode`: 0.6 ms against 13 to 60 ms, holding the GIL, for a text of 1
        MB.
        """
        return self.encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> "list[Encoding]":
        """Encodes each text separately, releasing the GIL once for all of them."""
        return self.fast.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)

    def encode_pieces(self, pieces: Sequence[str], *, add_special_tokens: bool) -> "Encoding":
        """Encodes a text in pieces, so that no token crosses a boundary."""
        if len(pieces) == 1:
            return self.encode(pieces[0], add_special_tokens=add_special_tokens)
        from tokenizers import Encoding

        each = self.encode_all(pieces, add_special_tokens=False)
        whole = Encoding.merge(each, growing_offsets=False)
        return self.fast.post_process(whole, add_special_tokens=add_special_tokens)

    def cut(
        self, pieces: Sequence[str], truncation: Truncation, *, add_special_tokens: bool
    ) -> list[int]:
        """The ids that are kept. Special tokens count and are not cut off."""
        encoding = self.encode_pieces(pieces, add_special_tokens=False)
        special = self.fast.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(max(0, truncation.tokens - special), direction=truncation.side)
        whole = self.fast.post_process(encoding, add_special_tokens=add_special_tokens)
        return list(whole.ids)

    def encode_pair(self, first: str, second: str) -> "Encoding":
        """Both texts in one sequence, separated by special tokens."""
        return self.fast.encode_batch_fast([(first, second)])[0]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of the ids. Unknown ids add nothing."""
        given = [list(token_ids)]  # only `decode_batch` releases the GIL
        return str(self.fast.decode_batch(given, skip_special_tokens=skip_special_tokens)[0])

    def all_special_tokens(self) -> list[str]:
        return [
            token.content
            for token in self.fast.get_added_tokens_decoder().values()
            if token.special
        ]

    def has_token(self, token: str) -> bool:
        """Whether the vocabulary contains this token."""
        return self.fast.token_to_id(token) is not None


def load(folder: Path) -> Tokenizer:
    """Reads tokenizer.json as is, like Hugging Face's own servers.

    `transformers` is imported only here and for rendering: the first import costs 1.2 s of CPU. Its
    AutoTokenizer would import torch too, 5.4 s in total, for the same tokens.
    """
    from transformers import PreTrainedTokenizerFast

    def refuse(error: Exception) -> NoReturn:
        reason = str(error).strip().partition("\n")[0]
        raise ModelUnavailable(f"its tokenizer cannot be loaded: {reason}") from error

    with caught(refuse):  # the library raises bare Exception for bad files
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    fast = tokenizer.backend_tokenizer
    fast.no_truncation()  # encoder models configure truncation; the gateway checks lengths
    fast.no_padding()
    return Tokenizer(
        fast=fast,
        chat_templates=_by_purpose(tokenizer.chat_template),
        special_tokens={
            name: token
            for name, token in tokenizer.special_tokens_map.items()
            if isinstance(token, str)
        },
    )


def _by_purpose(chat_template: str | dict[str, str] | None) -> dict[str, str]:
    if isinstance(chat_template, str):
        return {"default": chat_template}
    return dict(chat_template or {})


class SpecialTokenEscaper:
    """Escapes the special tokens of one tokenizer in what a client wrote. They stay text: only the
    template may write the turns of a conversation, its roles and its placeholders.

    A tokenizer reads `<|im_end|>` as one token wherever it appears. So a mark is inserted after
    each of its characters, and the text between marks is tokenized separately.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        spelled = sorted({token for token in tokens if len(token) > 1})
        self._pattern = re.compile(one_of(spelled)) if spelled else None
        # their first two characters as JSON: searching for these takes 1 us per KB
        self._beginnings = {orjson.dumps(token[:2])[1:-1] for token in spelled}

    def mark(self, values: Any) -> str | None:
        """Return a mark for `marked` that does not occur in `values`; None if there is nothing to
        escape.
        """
        if self._pattern is None or not self._may_hold(values):
            return None
        found = sum(1 for text in _texts(values) for _ in self._pattern.finditer(text))
        if found > MAX_SPECIAL_TOKENS:
            message = (
                f"Invalid 'messages': at most {MAX_SPECIAL_TOKENS} of the model's special tokens "
                f"may appear as text in a request, not {found}."
            )
            raise InvalidRequest(message, param="messages")
        return f"cut-{secrets.token_hex(8)}-" if found else None

    def _may_hold(self, values: Any) -> bool:
        try:
            written = orjson.dumps(values)
        except TypeError:  # an integer of more than 64 bits
            return True
        return any(beginning in written for beginning in self._beginnings)

    def marked(self, values: Any, mark: str) -> Any:
        """Return the values with the mark after each character of a special token."""
        if isinstance(values, str):
            return self._cut(values, mark)
        if isinstance(values, Mapping):
            return {self.marked(key, mark): self.marked(each, mark) for key, each in values.items()}
        if isinstance(values, list | tuple):
            return [self.marked(each, mark) for each in values]
        return values

    def _cut(self, text: str, mark: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: mark.join([*found[0], ""]), text)


def one_of(texts: Sequence[str], at: int = 0) -> str:
    """A regex for the longest of the texts, which are sorted and equal up to `at`.

    It branches where they differ. An alternation of Mistral's thousand tokens would try each of
    them at every possible start: 1 s for 300 KB, holding the GIL.
    """
    pairs = zip(texts[0][at:], texts[-1][at:], strict=False)
    start = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    after = at + len(start)
    by_next = groupby((text for text in texts if len(text) > after), key=lambda text: text[after])
    branches = [one_of(list(some), after) for _, some in by_next]
    rest = f"(?:{'|'.join(branches)})" if branches else ""
    ends_here = len(texts[0]) == after and branches
    return re.escape(start) + rest + ("?" if ends_here else "")


def _texts(values: Any) -> Iterable[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for key, each in values.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _texts(each)


class TokenizerPool:
    """Bounded threads that build prompts off the event loop.

    Runs at most `threads` tasks, with `queue` more waiting. Further ones are refused.
    """

    def __init__(self, *, threads: int, queue: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._capacity = threads + queue
        self._pending = 0

    async def run(self, work: Callable[[], Result], *, characters: int | None = None) -> Result:
        """Return the result of `work`. If the caller is cancelled, waiting work is dropped.

        `characters` is the prompt's length, if all of the work depends on it.
        """
        if characters is not None and characters <= INLINE_CHARACTERS:
            return work()
        if self._pending >= self._capacity:
            raise ServerOverloaded("Too many prompts are waiting to be tokenized.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Drop waiting work; running work finishes."""
        self._executor.shutdown(wait=False, cancel_futures=True)
