"""What an answer tells beside its text: counts, log probabilities, token ids. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.output.logprobs import Alternatives
from schemas.sampling import SamplingFields, StreamOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """What the request asked to be told; all of it is off by default."""

    logprobs: int | None = None  # alternatives for each of the answer's tokens
    logprob_token_ids: Sequence[
        int
    ] = ()  # the alternatives by their ids, in place of the likeliest
    echo_logprobs: bool = False  # those of the echoed prompt too
    prompt_logprobs: bool = False  # vLLM's list for the prompt
    tokens_as_ids: bool = False  # logprobs name tokens by their ids
    token_ids: bool = False  # the ids of prompt and answer
    include_usage: bool = False  # a stream ends with the counts
    continuous_usage: bool = False  # every chunk has the counts so far
    obfuscate: bool = False  # chunks are padded, so that their sizes tell little
    interval: int = 1  # tokens for each event of a stream
    gathered: bool = False  # by the engine already, which saves all of their way
    service_tier: bool = False  # the tier that served the request
    metadata: Mapping[str, str] | None = None  # what the request gave

    @property
    def plain(self) -> bool:
        """Whether a chunk of a stream holds text alone."""
        return (
            self.logprobs is None
            and not (self.token_ids or self.obfuscate)
            and (self.interval == 1 or self.gathered)
        )

    def alternatives(self) -> Alternatives:
        """Which tokens stand beside each of the answer's."""
        return Alternatives(self.logprobs or 0, self.logprob_token_ids)

    @property
    def needs_token_ids(self) -> bool:
        """Whether the model must tell the ids of its tokens, be it to count them."""
        return self.token_ids or self.continuous_usage or (self.interval > 1 and not self.gathered)


_NOTHING = ResponseOptions()
_FIELDS = {
    "logprob_token_ids",
    "metadata",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "service_tier",
    "stream_interval",
    "stream_options",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefaults:
    """The server's settings for streams whose requests do not say otherwise."""

    interval: int = 1  # tokens for each event
    force_usage: bool = False  # every stream ends with the counts


NO_DEFAULTS = StreamDefaults()


class Gatherer(Protocol):
    """The model, as far as it is asked here."""

    def supports(self, field: str) -> bool:
        """Whether the model honours a field."""


def details(
    request: SamplingFields,
    model: Gatherer,
    *,
    logprobs: int | None,
    defaults: StreamDefaults = NO_DEFAULTS,
    read: bool = False,
) -> ResponseOptions:
    """What the fields of either kind of request ask for.

    `read`: a parser reads the answer, for which the engine tells every token.
    """
    said = logprobs is not None or request.model_fields_set & _FIELDS
    if not said and defaults == NO_DEFAULTS:
        return _NOTHING
    if request.logprob_token_ids and logprobs is None:
        message = "Invalid 'logprob_token_ids': 'logprobs' must be asked for where it is used."
        raise InvalidRequest(message, param="logprob_token_ids")
    options = request.stream_options or StreamOptions()
    told = ResponseOptions(
        logprobs=logprobs,
        logprob_token_ids=request.logprob_token_ids or (),
        prompt_logprobs=request.prompt_logprobs is not None,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        token_ids=bool(request.return_token_ids),
        include_usage=bool(options.include_usage) or defaults.force_usage,
        continuous_usage=counts_on(options),
        obfuscate=bool(options.include_obfuscation),
        interval=request.stream_interval or defaults.interval,
        service_tier=request.service_tier is not None,
        metadata=request.metadata,
    )
    alone = logprobs is None and not (read or told.token_ids or told.continuous_usage)
    gathers = alone and told.interval > 1 and model.supports("stream_interval")
    return replace(told, gathered=gathers) if gathers else told


def counts_on(options: StreamOptions | None) -> bool:
    """Whether every chunk has the counts so far. As in vLLM, `include_usage` must ask for any."""
    return options is not None and bool(options.include_usage and options.continuous_usage_stats)


def wire_prompt_logprobs(
    positions: Sequence[Mapping[int, Mapping[str, Any]] | None],
) -> list[dict[str, Any] | None]:
    """vLLM's form of a prompt's log probabilities: JSON has the token ids as text."""
    return [
        None if position is None else {str(token): dict(entry) for token, entry in position.items()}
        for position in positions
    ]
