"""Between this project's requests and deltas and vLLM's."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_frontend.engines.engine import EngineError
from openai_frontend.generation import CompletionDelta, SamplingParams, TokenCounts

UNAVAILABLE = 4  # Triton's error code
ENGINE_DIED = "vLLM's engine process has died"

# vLLM's GPU worker holds 128 stop tokens where min_tokens is set, the model's own among them, and
# dies of one more (0.32, v1/worker/gpu/sample/logit_bias.py).
MAX_STOP_TOKEN_IDS = 100


def sampling_params(params: SamplingParams, defaults: Mapping[str, Any], *, stream: bool) -> Any:
    """Return vLLM's SamplingParams; `defaults` are the model's own (generation_config.json)."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VLLMSamplingParams

    if params.min_tokens and len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(
            f"stop_token_ids: at most {MAX_STOP_TOKEN_IDS} of them go together with min_tokens"
        )
    fields = {
        field.name: value
        for field in dataclasses.fields(params)
        if (value := getattr(params, field.name)) is not None and value != ()
    }
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return VLLMSamplingParams(**{"max_tokens": None, **defaults, **fields}, output_kind=kind)


def prompt(text: str | None, token_ids: Sequence[int] | None) -> Any:
    """Return vLLM's input. Token ids need no work of it; text it tokenizes in a thread."""
    from vllm.inputs import TextPrompt
    from vllm.inputs.engine import tokens_input

    if token_ids is not None:
        return tokens_input(list(token_ids))
    return TextPrompt(prompt=text or "")


def delta(output: Any) -> CompletionDelta:
    """Return what a RequestOutput adds."""
    completion = output.outputs[0]
    logprobs = _logprobs(completion.logprobs)
    if completion.finish_reason is None:
        return CompletionDelta(completion.text, completion.token_ids, logprobs=logprobs)
    counts = TokenCounts(
        prompt_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=output.num_cached_tokens or 0,
    )
    return CompletionDelta(
        completion.text,
        completion.token_ids,
        finish_reason(completion.finish_reason),
        completion.stop_reason,
        counts,
        logprobs,
    )


def finish_reason(reason: object) -> Any:
    """Return vLLM's reason as ours. Raises EngineError where the engine gave the request up."""
    name = str(reason)
    if name in ("stop", "length"):
        return name
    if name == "repetition":
        return "stop"
    raise EngineError(f"the engine ended the request: {name}")


def _logprobs(positions: Any) -> list[dict[int, dict[str, Any]]] | None:
    if positions is None:
        return None
    return [
        {
            token: {
                "logprob": entry.logprob,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token, entry in position.items()
        }
        for position in positions
    ]


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn vLLM's exceptions into ours: a dead engine is unavailable, a refused request the
    caller's fault.
    """
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineError(ENGINE_DIED, UNAVAILABLE) from error
    except VLLMClientError as error:
        raise ValueError(str(error)) from error
