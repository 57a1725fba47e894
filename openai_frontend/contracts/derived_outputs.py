"""Works out what a model does not report. No other module does.

A contract's `derives` says which of `DERIVED` it needs; docs/backends.md lists both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from openai_frontend.contracts import Contract, Outputs, TensorInput, Vocabulary
from openai_frontend.contracts.stop_strings import StopStrings
from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    TokenCounts,
    TokenLogprobs,
)

# Name of a derived output -> how it is derived
DERIVED: Mapping[str, str] = {
    "deltas": "Each response has the complete text so far; the delta is its new part.",
    "prompt": "A prompt at the start of the answer is removed.",
    "stop": "The text is cut at the first stop string, and the request is cancelled.",
    "finish_reason": (
        "`stop` if a stop string was found, `length` if the answer has `max_tokens` tokens, "
        "`stop` otherwise."
    ),
    "prompt_tokens": "The gateway's own tokenizer counts the prompt.",
    "completion_tokens": "The gateway's own tokenizer counts the complete answer.",
    "logprobs": (
        "The model reports numbers without their tokens; the gateway's own tokenizer splits the "
        "text that came with them."
    ),
}

# The key of a log probability whose token is unknown; no vocabulary is this large
UNKNOWN_TOKEN = 2**31 - 1

# No model reports these for each of several sequences in one response
_OF_SEQUENCES = frozenset({"finish_reason", "prompt_tokens", "completion_tokens"})

_HALF_CHARACTER = "\ufffd"  # a detokenizer's output for an incomplete character


class DerivedOutputs:
    """Wraps a contract and adds to its deltas what the model does not report."""

    def __init__(self, contract: Contract, vocabulary: Vocabulary | None) -> None:
        self._contract = contract
        self._vocabulary = vocabulary
        self.derives = contract.derives
        self.extra_args = contract.extra_args
        self.max_images = contract.max_images

    def supports(self, field: str) -> bool:
        """Delegates to the contract; also true for outputs derived here."""
        return self._contract.supports(field)

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        return self._contract.encode(request)

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """The contract's decoder, with each delta completed."""
        decode = self._contract.decoder(request)
        bounded = self._contract.supports("max_tokens")
        max_tokens = request.sampling_params.max_tokens if bounded else None
        derives = self.derives if request.sequences == 1 else self.derives | _OF_SEQUENCES
        return _DeltaCompleter(decode, request, derives, self._vocabulary, max_tokens).read

    def text_output(self, request: GenerationRequest) -> str | None:
        """None, because every response is inspected."""
        return None


class _DeltaCompleter:
    """Completes the deltas of one answer."""

    def __init__(
        self,
        decode: Callable[[Outputs], CompletionDelta],
        request: GenerationRequest,
        derives: frozenset[str],
        vocabulary: Vocabulary | None,
        max_tokens: int | None,
    ) -> None:
        """`max_tokens` is what the model was given, if it takes it."""
        params = request.sampling_params
        self._decode = decode
        self._derives = derives
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._prompt_tokens = len(request.prompt_token_ids or ())
        self._new_text = _NewText() if "deltas" in derives else None
        self._prompt = request.prompt if "prompt" in derives else None
        self._stops = (
            StopStrings(params.stop, included=params.include_stop_str_in_output)
            if params.stop and "stop" in derives
            else None
        )
        self._prompt_in_counts = False
        self._completion_tokens = 0
        self._texts: list[str] = []
        self._ended = False

    def read(self, outputs: Outputs) -> CompletionDelta:
        """The delta of one response. After a finish reason, deltas are empty."""
        if self._ended:
            return CompletionDelta()
        delta, final = self._decode(outputs), outputs.final
        last = final or delta.finish_reason is not None
        delta.text = self._added_text(delta.text, last=last)
        if delta.logprobs is not None and "logprobs" in self._derives:
            delta.logprobs = self._named(delta.text, delta.logprobs)
        stopped = self._cut(delta, last=last)
        self._texts.append(delta.text)
        if delta.counts is not None:
            delta.counts = self._of_answer(delta.counts)
            self._completion_tokens += delta.counts.completion_tokens
        if last or stopped:
            self._end(delta, stopped=stopped)
        else:
            delta.counts = self._counts(delta.counts)
        return delta

    def _added_text(self, text: str, *, last: bool) -> str:
        """The new text, without the prompt."""
        if self._new_text is not None:
            text = self._new_text.feed(text, last=last)
        if self._prompt is not None and text:
            text, self._prompt = self._without(self._prompt, text), None
        return text

    def _without(self, prompt: str, text: str) -> str:
        """The text without the prompt, with or without the prompt's special tokens."""
        forms = [prompt] if self._vocabulary is None else [prompt, self._vocabulary.plain(prompt)]
        found = next((form for form in forms if form and text.startswith(form)), "")
        self._prompt_in_counts = bool(found)
        return text.removeprefix(found)

    def _of_answer(self, counts: TokenCounts) -> TokenCounts:
        """The answer's counts: a model that repeats the prompt counts it too."""
        if not self._prompt_in_counts:
            return counts
        self._prompt_in_counts = False
        tokens = max(0, counts.completion_tokens - self._prompt_tokens)
        return replace(counts, completion_tokens=tokens)

    def _cut(self, delta: CompletionDelta, *, last: bool) -> bool:
        """Cuts the text at a stop string; True if one was found."""
        if self._stops is None:
            return False
        delta.text = self._stops.feed(delta.text)
        if self._stops.found is not None:
            return True
        if last:
            delta.text += self._stops.finish()
        return False

    def _end(self, delta: CompletionDelta, *, stopped: bool) -> None:
        self._ended = True
        delta.counts = self._counts(delta.counts)
        if stopped and self._stops is not None:
            delta.finish_reason, delta.stop_reason = "stop", self._stops.found
        elif delta.finish_reason is None and "finish_reason" in self._derives:
            delta.finish_reason = self._reason()

    def _counts(self, counts: TokenCounts | None) -> TokenCounts | None:
        """A response's counts, completed; on the last response if the model counts nothing."""
        if "completion_tokens" in self._derives and self._ended and self._vocabulary is not None:
            self._completion_tokens = len(self._vocabulary.ids("".join(self._texts)))
            counts = counts or TokenCounts(self._prompt_tokens)
            counts = replace(counts, completion_tokens=self._completion_tokens)
        if counts is not None and "prompt_tokens" in self._derives:
            return replace(counts, prompt_tokens=self._prompt_tokens)
        return counts

    def _reason(self) -> FinishReason:
        full = self._max_tokens is not None and self._completion_tokens >= self._max_tokens
        return "length" if full else "stop"

    def _named(self, text: str, numbers: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """The log probabilities, each with its token."""
        ids = list(self._vocabulary.ids(text)) if self._vocabulary is not None and text else []
        values = [next(iter(position.values()))["logprob"] for position in numbers]
        if len(values) == 1 and len(ids) != 1:
            return [_named(UNKNOWN_TOKEN, values[0], text)]  # one token, whatever its ids here
        if len(values) == len(ids) + 1:
            ids.append(UNKNOWN_TOKEN)  # the final token of an answer has no text
        if len(values) != len(ids):
            raise InferenceFailed(
                f"The model sent {len(values)} log probabilities for a text of {len(ids)} tokens."
            )
        pairs = zip(ids, values, strict=True)
        return [_named(token_id, value, self._text(token_id)) for token_id, value in pairs]

    def _text(self, token_id: int) -> str:
        known = self._vocabulary
        return (known.token_text(token_id) if known is not None else None) or ""


def _named(token_id: int, value: float, text: str) -> TokenLogprobs:
    return {token_id: {"logprob": value, "rank": None, "decoded_token": text}}


class _NewText:
    """Finds the new part of a text that is sent complete each time."""

    def __init__(self) -> None:
        self._whole = ""
        self._length = 0  # characters returned so far

    def feed(self, whole: str, *, last: bool) -> str:
        """Holds back an incomplete character until its end. The last `whole` may be empty."""
        self._whole = whole or self._whole
        sure = self._whole if last else self._whole.rstrip(_HALF_CHARACTER)
        added = sure[self._length :]
        self._length = max(self._length, len(sure))
        return added
