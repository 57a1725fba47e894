"""Values that a response reports besides text: usage, log probabilities, token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.admission.model import Describes
from schemas.sampling import SamplingFields, StreamOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """Values that the response must report. Everything is off by default."""

    logprobs: int | None = None  # number of alternatives for each output token
    logprob_token_ids: Sequence[int] = ()  # the alternatives by id, instead of the likeliest
    echo_logprobs: bool = False  # also those of the echoed prompt
    prompt_logprobs: bool = False  # vLLM's list for the prompt
    tokens_as_ids: bool = False  # logprobs name tokens by their ids
    token_ids: bool = False  # ids of prompt and output
    include_usage: bool = False  # a stream ends with the usage
    continuous_usage: bool = False  # every chunk has the usage so far
    obfuscate: bool = False  # pad chunks to hide the length of tokens
    interval: int = 1  # tokens for each event of a stream
    coalesced_by_engine: bool = False  # the engine applies the interval, which is cheapest
    service_tier: bool = False  # the tier that served the request
    metadata: Mapping[str, str] | None = None  # returned as sent

    @property
    def plain(self) -> bool:
        """Whether chunks have only text."""
        return (
            self.logprobs is None
            and not (self.token_ids or self.obfuscate)
            and (self.interval == 1 or self.coalesced_by_engine)
        )

    @property
    def only_logprobs(self) -> bool:
        """Whether chunks have text and the likeliest tokens, and nothing else."""
        others = self.logprob_token_ids or self.tokens_as_ids or self.prompt_logprobs
        return self.logprobs is not None and not others and replace(self, logprobs=None).plain

    @property
    def needs_token_ids(self) -> bool:
        """Whether the model must return token ids, if only to count them."""
        return (
            self.token_ids
            or self.continuous_usage
            or (self.interval > 1 and not self.coalesced_by_engine)
        )


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
    """The server's defaults for streams."""

    interval: int = 1  # tokens for each event
    force_usage: bool = False  # every stream ends with the usage


NO_DEFAULTS = StreamDefaults()


def response_options(
    request: SamplingFields,
    model: Describes,
    *,
    logprobs: int | None,
    defaults: StreamDefaults = NO_DEFAULTS,
    parsed: bool = False,
) -> ResponseOptions:
    """Response options of a chat or completion request.

    `parsed`: the output is parsed, for which the engine returns every token.
    """
    requested = logprobs is not None or request.model_fields_set & _FIELDS
    if not requested and defaults == NO_DEFAULTS:
        return _NOTHING
    if request.logprob_token_ids and logprobs is None:
        message = "Invalid 'logprob_token_ids': it requires 'logprobs'."
        raise InvalidRequest(message, param="logprob_token_ids")
    stream_options = request.stream_options or StreamOptions()
    options = ResponseOptions(
        logprobs=logprobs,
        logprob_token_ids=request.logprob_token_ids or (),
        prompt_logprobs=request.prompt_logprobs is not None,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        token_ids=bool(request.return_token_ids),
        include_usage=bool(stream_options.include_usage) or defaults.force_usage,
        continuous_usage=reports_continuous_usage(stream_options),
        obfuscate=bool(stream_options.include_obfuscation),
        interval=request.stream_interval or defaults.interval,
        service_tier=request.service_tier is not None,
        metadata=request.metadata,
    )
    per_token = logprobs is not None or parsed or options.token_ids or options.continuous_usage
    if per_token or options.interval == 1 or not model.supports("stream_interval"):
        return options
    return replace(options, coalesced_by_engine=True)


def reports_continuous_usage(options: StreamOptions | None) -> bool:
    """Whether every chunk has the usage so far. As in vLLM, this requires `include_usage`."""
    return options is not None and bool(options.include_usage and options.continuous_usage_stats)
