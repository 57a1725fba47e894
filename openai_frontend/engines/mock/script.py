"""A script: the prompt selects the output, in the tokens of the model's own tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Self

from openai_frontend.engines.engine import EngineError
from openai_frontend.generation import CompletionDelta
from openai_frontend.triton import error_codes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

_TURNS_NAMED = 20  # in the error of a prompt that none matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An output, and the prompts that get it."""

    text: str
    contains: str = ""  # in the last user message
    after: int | None = None  # tool results since that message; None: any number

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.contains, str):
            raise TypeError("turns: `text` and `contains` must be strings")
        if self.after is not None and (type(self.after) is not int or self.after < 0):
            raise TypeError("turns: `after` must be a number of tool results, 0 or more")

    def matches(self, user_text: str, tool_results: int) -> bool:
        return self.contains in user_text and self.after in (None, tool_results)

    def __str__(self) -> str:
        after = "any number of" if self.after is None else self.after
        return f"{self.contains!r} and {after} tool results"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMarkers:
    """The texts of a chat template around messages. The defaults are Qwen's, in ChatML."""

    user: str = "<|im_start|>user\n"  # before a user message, or a tool result in its role
    end: str = "<|im_end|>"  # after a message
    tool_result: str = "<tool_response>"

    def last_user_message(self, prompt: str) -> tuple[str, int]:
        """Its text, and the number of tool results that follow it.

        A prompt without user messages, such as one of /v1/completions, is the message itself.
        """
        end = len(prompt)
        while (begin := prompt.rfind(self.user, 0, end)) >= 0:
            user_text, _, rest = prompt[begin + len(self.user) :].partition(self.end)
            if not user_text.lstrip().startswith(self.tool_result):
                return user_text, rest.count(self.tool_result)
            end = begin
        return prompt, 0


class Script:
    """The turns of a model, in the tokens of its tokenizer."""

    def __init__(
        self, turns: Sequence[Turn], markers: PromptMarkers, tokenizer: "FastTokenizer"
    ) -> None:
        self._outputs = [(turn, list(_deltas(turn.text, tokenizer))) for turn in turns]
        self._markers = markers
        self._tokenizer = tokenizer
        self.vocabulary_size = tokenizer.get_vocab_size()

    @classmethod
    def load(cls, turns: Sequence[Turn], markers: PromptMarkers, folder: Path) -> Self:
        """With the tokenizer of a folder. Raises ValueError."""
        from tokenizers import Tokenizer as FastTokenizer

        try:
            tokenizer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"turns: the tokenizer in {folder} cannot be read: {error}") from error
        tokenizer.no_truncation()
        return cls(turns, markers, tokenizer)

    def output(self, prompt: str | None, token_ids: Sequence[int] | None) -> list[CompletionDelta]:
        """The output of the first turn that matches the prompt. Raises EngineError if none does."""
        text = self.decode(token_ids) if token_ids is not None else prompt or ""
        user_text, tool_results = self._markers.last_user_message(text)
        for turn, deltas in self._outputs:
            if turn.matches(user_text, tool_results):
                return deltas
        named = "; ".join(str(turn) for turn, _ in self._outputs[:_TURNS_NAMED])
        raise EngineError(
            "turns: none matches the last user message and the "
            f"{tool_results} tool results after it; they are for: {named}",
            error_codes.INVALID_ARG,
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, including special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _deltas(text: str, tokenizer: "FastTokenizer") -> Iterator[CompletionDelta]:
    """One delta per token; their texts join to `text`.

    A character of several tokens is in the delta of the last one.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if text and not encoding.ids:
        raise ValueError(f"turns: the tokenizer makes no tokens of {text!r}")
    begins = [begin for begin, _ in encoding.offsets]
    boundaries = [0, *begins[1:], len(text)] if text else [0]
    for token, (begin, end) in zip(encoding.ids, pairwise(boundaries), strict=True):
        yield CompletionDelta(text[begin:end], (token,))
