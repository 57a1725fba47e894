"""Fields in OpenAI's form that chats and completions share, whether streamed or whole."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from openai_frontend import __version__
from openai_frontend.generation import TokenLogprobs
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.request.tools import Tools
from schemas.chat_completions import FinishReason


def leading_fields(job: CompletionJob) -> dict[str, Any]:
    """The first fields of a response, and of each chunk of a stream."""
    fields = {
        "id": job.id,
        "created": job.created,
        "model": job.model.name,
        "system_fingerprint": _fingerprint(job.model.name, job.model.fingerprint),
    }
    return {**fields, "service_tier": "default"} if job.options.service_tier else fields


@lru_cache(maxsize=64)
def _fingerprint(model: str, files: str) -> str:
    """Changes with the gateway and the model, after which a seed may give another output."""
    digest = hashlib.sha256(f"{__version__}/{model}/{files}".encode())
    return f"fp_{digest.hexdigest()[:12]}"


def finish_reason(end: OutputEnd, tools: Tools) -> FinishReason:
    """OpenAI's word for why an output ended."""
    if end.reason != "calls":
        return end.reason
    return "function_call" if tools.legacy else "tool_calls"


def usage_fields(usage: Usage) -> dict[str, Any]:
    """The fields of CompletionUsage."""
    details = {"cached_tokens": usage.cached_tokens}
    if usage.image_tokens:
        details["image_tokens"] = usage.image_tokens
    if usage.audio_tokens:
        details["audio_tokens"] = usage.audio_tokens
    fields: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    if usage.performance_metrics:
        fields["performance_metrics"] = [dict(each) for each in usage.performance_metrics]
    return fields


def wire_prompt_logprobs(positions: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """A prompt's log probabilities in vLLM's form, with token ids as text."""
    return [
        None if position is None else {str(token): dict(entry) for token, entry in position.items()}
        for position in positions
    ]
