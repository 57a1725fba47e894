"""Works out what a model does not report. No other module does.

A contract's `derives` says which of `DERIVED` it needs; docs/backends.md lists both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from openai_frontend.contracts.contract import Contract, Outputs, TensorInput, Vocabulary
from openai_frontend.contracts.stop_strings import StopStrings
from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    TokenCounts,
    TokenLogprobs,
)

# What may be derived -> how
DERIVED: Mapping[str, str] = {
    "deltas": "Each response tells the whole text so far: what is new of it is the delta.",
    "prompt": "A prompt at the start of the answer is removed.",
    "stop": "The text is cut at the first stop text, and the request is ended there.",
    "finish_reason": (
        "`stop` where a stop text was found, `length` where the answer has `max_tokens` tokens, "
        "`stop` otherwise."
    ),
    "prompt_tokens": "The gateway's own tokenizer counts the prompt.",
    "completion_tokens": "The gateway's own tokenizer counts the answer, once it is complete.",
    "logprobs": (
        "The model tells numbers without their tokens: the gateway's own tokenizer tells the "
        "tokens of the text that came with them."
    ),
}

# The key of a log probability whose token nobody knows; no vocabulary is as large
UNKNOWN_TOKEN = 2**31 - 1

# Of several sequences in one response, no model says these by one
_OF_SEQUENCES = frozenset({"finish_reason", "prompt_tokens", "completion_tokens"})

_HALF_CHARACTER = "\ufffd"  # how a detokenizer writes the bytes of a character that has not ended


class DerivedOutputs:
    """A contract whose answers are completed with what the model does not say of them."""

    def __init__(self, contract: Contract, vocabulary: Vocabulary | None) -> None:
        self._contract = contract
        self._vocabulary = vocabulary
        self.derives = contract.derives
        self.extra_args = contract.extra_args

    def supports(self, field: str) -> bool:
        """The contract's own word, which counts what is done here."""
        return self._contract.supports(field)

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The contract's own inputs."""
        return self._contract.encode(request)

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """Completes each delta of the contract's decoder, for one answer."""
        decode = self._contract.decoder(request)
        bounded = self._contract.supports("max_tokens")
        max_tokens = request.sampling_params.max_tokens if bounded else None
        derives = self.derives if request.sequences == 1 else self.derives | _OF_SEQUENCES
        return _Answer(decode, request, derives, self._vocabulary, max_tokens).read

    def text_output(self, request: GenerationRequest) -> str | None:
        """None: every response is looked at."""
        return None


class _Answer:
    """One answer as it comes, and what is known of it so far."""

    def __init__(
        self,
        decode: Callable[[Outputs], CompletionDelta],
        request: GenerationRequest,
        derives: frozenset[str],
        vocabulary: Vocabulary | None,
        max_tokens: int | None,
    ) -> None:
        """`max_tokens` is what the model was told, if it was."""
        params = request.sampling_params
        self._decode = decode
        self._derives = derives
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._prompt_tokens = len(request.prompt_token_ids or ())
        self._news = _News() if "deltas" in derives else None
        self._prompt = request.prompt if "prompt" in derives else None
        self._stops = (
            StopStrings(params.stop, included=params.include_stop_str_in_output)
            if params.stop and "stop" in derives
            else None
        )
        self._told_prompt = False  # and not yet taken from the counts
        self._completion_tokens = 0
        self._texts: list[str] = []
        self._ended = False

    def read(self, outputs: Outputs) -> CompletionDelta:
        """The delta of one response; nothing follows the one that has a finish reason."""
        if self._ended:
            return CompletionDelta()
        delta, final = self._decode(outputs), outputs.final
        delta.text = self._fresh(delta.text, final=final)
        if delta.logprobs is not None and "logprobs" in self._derives:
            delta.logprobs = self._named(delta.text, delta.logprobs)
        stopped = self._cut(delta, final=final)
        self._texts.append(delta.text)
        if delta.counts is not None:
            delta.counts = self._of_answer(delta.counts)
            self._completion_tokens += delta.counts.completion_tokens
        if final or stopped or delta.finish_reason is not None:
            self._end(delta, stopped=stopped)
        else:
            delta.counts = self._counts(delta.counts)
        return delta

    def _fresh(self, text: str, *, final: bool) -> str:
        """What has not been told yet, without the prompt."""
        if self._news is not None:
            text = self._news.feed(text, final=final)
        if self._prompt is not None and text:
            text, self._prompt = self._without(self._prompt, text), None
        return text

    def _without(self, prompt: str, text: str) -> str:
        """The answer alone; a detokenizer may have left the prompt's special tokens out."""
        forms = [prompt] if self._vocabulary is None else [prompt, self._vocabulary.plain(prompt)]
        found = next((form for form in forms if form and text.startswith(form)), "")
        self._told_prompt = bool(found)
        return text.removeprefix(found)

    def _of_answer(self, counts: TokenCounts) -> TokenCounts:
        """A prompt that is told is counted with the answer."""
        if not self._told_prompt:
            return counts
        self._told_prompt = False
        tokens = max(0, counts.completion_tokens - self._prompt_tokens)
        return replace(counts, completion_tokens=tokens)

    def _cut(self, delta: CompletionDelta, *, final: bool) -> bool:
        """Cuts the text at a stop text; whether one was found."""
        if self._stops is None:
            return False
        delta.text = self._stops.feed(delta.text)
        if self._stops.found is not None:
            return True
        if final or delta.finish_reason is not None:
            delta.text += self._stops.finish()
        return False

    def _end(self, delta: CompletionDelta, *, stopped: bool) -> None:
        self._ended = True
        delta.counts = self._counts(delta.counts)
        if stopped and self._stops is not None:
            delta.finish_reason, delta.stop_reason = "stop", self._stops.found
        elif delta.finish_reason is None and "finish_reason" in self._derives:
            delta.finish_reason = self._reason()

    def _counts(self, told: TokenCounts | None) -> TokenCounts | None:
        """Those of a response, completed; all of the answer's come with its last response where
        the model counts nothing.
        """
        if "completion_tokens" in self._derives and self._ended and self._vocabulary is not None:
            self._completion_tokens = len(self._vocabulary.ids("".join(self._texts)))
            told = told or TokenCounts(self._prompt_tokens)
            told = replace(told, completion_tokens=self._completion_tokens)
        if told is not None and "prompt_tokens" in self._derives:
            return replace(told, prompt_tokens=self._prompt_tokens)
        return told

    def _reason(self) -> FinishReason:
        full = self._max_tokens is not None and self._completion_tokens >= self._max_tokens
        return "length" if full else "stop"

    def _named(self, text: str, numbers: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """The same log probabilities, each with its token."""
        ids = list(self._vocabulary.ids(text)) if self._vocabulary is not None and text else []
        values = [next(iter(position.values()))["logprob"] for position in numbers]
        if len(values) == 1 and len(ids) != 1:
            return [_named(UNKNOWN_TOKEN, values[0], text)]  # one token, however it is spelt
        if len(values) == len(ids) + 1:
            ids.append(UNKNOWN_TOKEN)  # the token that ends an answer has no text
        if len(values) != len(ids):
            raise InferenceFailed(
                f"The model told {len(values)} log probabilities of a text of {len(ids)} tokens."
            )
        pairs = zip(ids, values, strict=True)
        return [_named(token_id, value, self._text(token_id)) for token_id, value in pairs]

    def _text(self, token_id: int) -> str:
        known = self._vocabulary
        return (known.token_text(token_id) if known is not None else None) or ""


def _named(token_id: int, value: float, text: str) -> TokenLogprobs:
    return {token_id: {"logprob": value, "rank": None, "decoded_token": text}}


class _News:
    """What is new of a text that is told whole each time."""

    def __init__(self) -> None:
        self._whole = ""
        self._told = 0  # characters

    def feed(self, whole: str, *, final: bool) -> str:
        """A character that has not ended waits for its other bytes; the last may be empty."""
        self._whole = whole or self._whole
        sure = self._whole if final else self._whole.rstrip(_HALF_CHARACTER)
        fresh = sure[self._told :]
        self._told = max(self._told, len(sure))
        return fresh
