"""A Hugging Face tokenizer from a local folder, and the threads that run it.

Never downloads, never runs code found there.
"""

import asyncio
import hashlib
import logging
import struct
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar
from weakref import WeakValueDictionary

from openai_frontend.errors import ModelUnavailable, ServerOverloaded, caught

if TYPE_CHECKING:
    from fastokens import Tokenizer as Fastokens
    from tokenizers import Encoding as HuggingFaceEncoding
    from tokenizers import Tokenizer as FastTokenizer

    TokenIds = array[int]
else:
    TokenIds = array  # a generic class since Python 3.12

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Ids = TypeVar("Ids", list[int], TokenIds)

# Shorter prompts are built on the event loop, where they take 0.1 to 0.5 ms; a thread adds 0.1 ms
# of CPU (docs/decisions/0011-tokenization.md). With fastokens, 4,096 characters take 0.1 ms, and
# 2 ms if they are special tokens that stay text.
INLINE_CHARACTERS, FASTOKENS_INLINE_CHARACTERS = 2048, 4096

MANY_IDS = 8192  # which a thread packs in steps
FEW_IDS = 256  # a list; from here on an array costs less to make a tensor and a message of
# White space for the regular expressions of fastokens, but not for those of `tokenizers`: the only
# such character (docs/decisions/0011-tokenization.md)
_OTHER_SPACE = "\u180e"
_PAUSE_S = 50e-6  # lets another thread take the GIL, even on the same core


def pack(token_ids: list[int]) -> TokenIds:
    """The ids as int32: this saves the event loop 13 ns per id when it makes a tensor of them.

    Empties the list of many ids in steps, and sleeps between them: each step holds the GIL, and so
    does freeing the list, both for 10 ns per id.
    """
    if len(token_ids) < MANY_IDS:
        return TokenIds("i", token_ids)
    steps = []
    while token_ids:
        time.sleep(_PAUSE_S)
        steps.append(TokenIds("i", token_ids[-MANY_IDS:]))
        del token_ids[-MANY_IDS:]
    packed = TokenIds("i")
    for step in reversed(steps):
        packed += step
    return packed


class PackedEncoding:
    """The tokens of a text as int32, as fastokens returns them."""

    __slots__ = ("packed",)

    def __init__(self, packed: TokenIds) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def ids(self) -> list[int] | TokenIds:
        """A list of few ids, an array of more."""
        return self.packed.tolist() if len(self.packed) < FEW_IDS else self.packed


if TYPE_CHECKING:
    Encoding = HuggingFaceEncoding | PackedEncoding


@dataclass(frozen=True, slots=True, weakref_slot=True)
class QuickTokenizer:
    """A tokenizer in fastokens: ten times as fast as `tokenizers`."""

    fastokens: "Fastokens"
    before: TokenIds  # what `add_special_tokens` adds before a text
    after: TokenIds

    def encode_all(self, texts: Sequence[str]) -> list[TokenIds] | None:
        """The ids of each text, without special tokens around it; None if `tokenizers` must find
        them.
        """
        if (encoded := self._encode(texts)) is None:
            return None
        found, ends = encoded
        places = struct.unpack(f"<{len(texts) + 1}Q", ends)
        return [found[begin:end] for begin, end in pairwise(places)]

    def encode_joined(self, texts: Sequence[str]) -> TokenIds | None:
        """Encode texts into one array of token ids."""
        encoded = self._encode(texts)
        return None if encoded is None else encoded[0]

    def _encode(self, texts: Sequence[str]) -> tuple[TokenIds, bytes] | None:
        if any(_OTHER_SPACE in text for text in texts):
            return None
        try:
            ids, ends = self.fastokens.encode_batch_flat(list(texts))
        except (ValueError, RuntimeError):  # a limit of its regular expressions
            return None
        return TokenIds("i", ids), ends

    def surrounded(self, token_ids: TokenIds) -> TokenIds:
        """The ids with the special tokens around them."""
        return self.before + token_ids + self.after


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, and on which side the rest is cut (vLLM's
    `truncate_prompt_tokens`).
    """

    tokens: int
    side: Literal["left", "right"]

    def kept(self, token_ids: Ids) -> Ids:
        """The remaining tokens; a shorter prompt stays unchanged."""
        start = max(0, len(token_ids) - self.tokens) if self.side == "left" else 0
        return token_ids[start : start + self.tokens]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A fast tokenizer and the chat settings of its folder."""

    fast: "FastTokenizer"
    chat_templates: Mapping[str, str]  # by purpose: "default", "tool_use", ...
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ...: variables of templates
    quick: QuickTokenizer | None = None  # finds the same tokens

    @property
    def inline_characters(self) -> int:
        """Length of the texts that are tokenized without a thread."""
        return INLINE_CHARACTERS if self.quick is None else FASTOKENS_INLINE_CHARACTERS

    def encode(self, text: str, *, add_special_tokens: bool) -> "Encoding":
        """Its length is the number of tokens; its `ids` are a list, or an array of many."""
        return self.encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> "Sequence[Encoding]":
        """Encodes each text separately, releasing the GIL once for all of them.

        Of `tokenizers`, `encode_batch_fast` releases the GIL, keeps no offsets, and its result is
        freed 20 times faster than that of `encode`: 0.6 ms against 13 to 60 ms, holding the GIL,
        for a text of 1 MB.
        """
        if self.quick is not None and (found := self.quick.encode_all(texts)) is not None:
            if add_special_tokens:
                found = [self.quick.surrounded(each) for each in found]
            return [*map(PackedEncoding, found)]
        return self.fast.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)

    def encode_pieces(self, pieces: Sequence[str], *, add_special_tokens: bool) -> "Encoding":
        """Encodes a text in pieces, so that no token crosses a boundary."""
        if len(pieces) == 1:
            return self.encode(pieces[0], add_special_tokens=add_special_tokens)
        if self.quick is not None and (joined := self.quick.encode_joined(pieces)) is not None:
            return PackedEncoding(self.quick.surrounded(joined) if add_special_tokens else joined)
        from tokenizers import Encoding

        each = self.fast.encode_batch_fast(list(pieces), add_special_tokens=False)
        whole = Encoding.merge(each, growing_offsets=False)
        return self.fast.post_process(whole, add_special_tokens=add_special_tokens)

    def cut(
        self, pieces: Sequence[str], truncation: Truncation, *, add_special_tokens: bool
    ) -> list[int] | TokenIds:
        """The ids that are kept. Special tokens count and are not cut off."""
        encoding = self.encode_pieces(pieces, add_special_tokens=False)
        special = self.fast.num_special_tokens_to_add(False) if add_special_tokens else 0
        tokens = max(0, truncation.tokens - special)
        if isinstance(encoding, PackedEncoding):
            kept = replace(truncation, tokens=tokens).kept(encoding.packed)
            if self.quick is not None and add_special_tokens:
                kept = self.quick.surrounded(kept)
            return PackedEncoding(kept).ids
        encoding.truncate(tokens, direction=truncation.side)
        whole = self.fast.post_process(encoding, add_special_tokens=add_special_tokens)
        return list(whole.ids)

    def encode_pair(
        self, first: str, second: str, truncation: Truncation | None = None
    ) -> "HuggingFaceEncoding":
        """Both texts in one sequence, separated by special tokens. Only the second is cut."""
        whole = self.fast.encode_batch_fast([(first, second)])[0]
        if truncation is None or len(whole) <= truncation.tokens:
            return whole
        one, other = self.fast.encode_batch_fast([first, second], add_special_tokens=False)
        room = truncation.tokens - len(one) - self.fast.num_special_tokens_to_add(True)
        other.truncate(max(0, room), direction=truncation.side)
        return self.fast.post_process(one, other, add_special_tokens=True)

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


def load(folder: Path, *, use_fastokens: bool = False) -> Tokenizer:
    """Reads tokenizer.json as is, like Hugging Face's own servers.

    `use_fastokens`: if it finds the same tokens.

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
        quick=_shared(fast) if use_fastokens else None,
        chat_templates=_by_purpose(tokenizer.chat_template),
        special_tokens={
            name: token
            for name, token in tokenizer.special_tokens_map.items()
            if isinstance(token, str)
        },
    )


# Texts on which both libraries must agree: scripts, white space, numbers, code, signs.
_PROBES = (
    "The quick brown fox doesn't jump; it's I'LL, we've. (Really?!)  Two  spaces,\ttabs",
    "line\nbreaks\r\nof \n\n all \r kinds \u00a0 and \u3000 spaces   ",
    "0 12 123 1234 12345 3.14159 1,000,000 0x7f 1e-9 \u0661\u0662\u0663 \u2167 \u00bd",
    'def f(x: int) -> str:\n    return f"{x!r}"  # done\n\n\t\tif (a&&b)||!c {}[];\n',
    "Ünïcödé naïve e\u0301 a\u0308\u0323 \ufb01 ß ẞ İ ǅ привет, мир \u03a9\u03c3 שלום مرحبا",
    "नमस्ते สวัสดี 1\u00b2 x\u2044y ` \u2019\u201c\u2014\u2026 \u0e33",
    "日本語の文章、中文字符。한국어 문장 \uff0c 👍🏽 👨\u200d👩\u200d👧 🇩🇪 ♥\ufe0f \U00010348",
    "\x00\x01\x7f\ufffd\ufeff\u200b\u200d <tag attr='x'>&amp;</tag> https://a.b/c?d=e#f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ============================ ......",
    "CamelCaseWords snake_case_words KEBAB-case 'quoted' \"double\" `code` *bold* _it_ ~~",
    "",
    " ",
    "\n",
)
_BESIDE = (("", ""), ("a ", " b"), ("a", "b"), ("\n", "\n\n"), ("  ", "  "))  # added tokens
_MOST_ADDED = 64  # of a tokenizer's added tokens, in the texts that are tried


_quick_tokenizers: WeakValueDictionary[bytes, QuickTokenizer] = WeakValueDictionary()
_unsupported: set[bytes] = set()
_loading = Lock()


def _shared(fast: "FastTokenizer") -> QuickTokenizer | None:
    """The result of `_quick`, shared by all models with this tokenizer and by a model's next
    generation: with 128,000 tokens, it takes a second to make, and 100 MB.
    """
    text = fast.to_str()
    digest = hashlib.sha256(text.encode()).digest()
    with _loading:
        found = _quick_tokenizers.get(digest)
        if found is None and digest not in _unsupported:
            if (found := _quick(fast, text)) is None:
                _unsupported.add(digest)
            else:
                _quick_tokenizers[digest] = found
        return found


def _quick(fast: "FastTokenizer", text: str) -> QuickTokenizer | None:
    """The tokenizer in fastokens; `text` is its tokenizer.json.

    None if the package is missing (it has no build for some platforms), if it does not support the
    tokenizer (it is for BPE), or if one of many texts has other ids than in `tokenizers`, which is
    the reference.
    """
    try:
        from fastokens import Tokenizer as Fastokens

        made = QuickTokenizer(Fastokens.from_json_str(text), *_around(fast))
        if _agrees(made, fast):
            return made
        reason = "it finds other tokens in some texts"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust code is not an Exception
        reason = str(error).partition("\n")[0]
    logger.info("tokenized without fastokens: %s", reason)
    return None


def _agrees(quick: QuickTokenizer, fast: "FastTokenizer") -> bool:
    added = [token.content for token in fast.get_added_tokens_decoder().values()][:_MOST_ADDED]
    mixed = [f"{before}{token}{after}" for token in added for before, after in _BESIDE]
    texts = [*_PROBES, *mixed, "".join(_PROBES), " ".join(mixed)]
    tried = Tokenizer(fast, {}, {}, quick)
    for special in (False, True):
        expected = fast.encode_batch_fast(texts, add_special_tokens=special)
        found = tried.encode_all(texts, add_special_tokens=special)
        if [list(each.ids) for each in found] != [each.ids for each in expected]:
            return False
    return True


def _around(fast: "FastTokenizer") -> tuple[TokenIds, TokenIds]:
    """Token ids that `add_special_tokens` adds before and after a text."""
    whole, bare = fast.encode("a").ids, fast.encode("a", add_special_tokens=False).ids
    starts = (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    start = next(starts, 0)
    return TokenIds("i", whole[:start]), TokenIds("i", whole[start + len(bare) :])


def _by_purpose(chat_template: str | dict[str, str] | None) -> dict[str, str]:
    if isinstance(chat_template, str):
        return {"default": chat_template}
    return dict(chat_template or {})


class TokenizerPool:
    """Bounded threads that build prompts off the event loop.

    Runs at most `threads` tasks, with `queue` more waiting. Further ones are refused.
    """

    def __init__(self, *, threads: int, queue: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._capacity = threads + queue
        self._pending = 0

    async def run(
        self,
        work: Callable[[], Result],
        *,
        characters: int | None = None,
        inline: int = INLINE_CHARACTERS,
    ) -> Result:
        """Return the result of `work`. If the caller is cancelled, waiting work is dropped.

        `characters` is the prompt's length, if all of the work depends on it. A thread does the
        work only if there are more than `inline`.
        """
        if characters is not None and characters <= inline:
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
