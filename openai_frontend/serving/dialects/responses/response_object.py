"""The response object, whole and within the events of a stream: OpenAI's 31 members."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from openai_frontend.serving.dialects.responses.output_items import ItemForm
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.template_inputs import IGNORED
from schemas.responses import ResponsesRequest

Fields = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


def echoed(request: ResponsesRequest, tools: Sequence[Any], adjusted: Mapping[str, str]) -> bytes:
    """The members that repeat the request with the values in force, as the rest of an object.

    `adjusted` has the hints of the request that were replaced.
    """
    reasoning, text = request.reasoning, request.text
    effort = _applied("reasoning_effort", None if reasoning is None else reasoning.effort, adjusted)
    verbosity = _applied("verbosity", None if text is None else text.verbosity, adjusted)
    output_format = None if text is None else text.format
    fields: Fields = {
        "background": False,
        "frequency_penalty": _or(request.frequency_penalty, 0.0),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": _or(request.presence_penalty, 0.0),
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": _summary(request)},
        "safety_identifier": request.safety_identifier,
        "service_tier": request.service_tier or "default",
        "store": False,
        "temperature": _or(request.temperature, 1.0),
        "text": {"format": output_format or {"type": "text"}, "verbosity": verbosity or "medium"},
        "tool_choice": request.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": _or(request.top_p, 1.0),
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
    return client_json(fields)[1:]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _applied(hint: str, value: str | None, adjusted: Mapping[str, str]) -> str | None:
    used = adjusted.get(hint, value)
    return None if used == IGNORED else used


def _summary(request: ResponsesRequest) -> str | None:
    reasoning = request.reasoning
    return None if reasoning is None else reasoning.summary or reasoning.generate_summary


def wants_summary(request: ResponsesRequest) -> bool:
    """Whether reasoning is returned as a summary."""
    return _summary(request) is not None


@dataclass(slots=True, kw_only=True)
class ResponseJob:
    """A job, and the form of its response."""

    job: CompletionJob
    form: ItemForm
    echo: bytes  # see `echoed`

    def document(
        self,
        status: Status,
        output: Sequence[Fields] = (),
        *,
        usage: Usage | None = None,
        error: Fields | None = None,
        incomplete: str | None = None,
    ) -> bytes:
        """The response object as JSON."""
        ended = status in ("completed", "incomplete")
        fields: Fields = {
            "id": self.job.id,
            "object": "response",
            "created_at": self.job.created,
            "completed_at": int(time.time()) if ended else None,
            "status": status,
            "model": self.job.model.name,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "output": output,
            "usage": None if usage is None else usage_fields(usage),
        }
        return orjson.dumps(fields)[:-1] + b"," + self.echo


def final_status(end: OutputEnd) -> tuple[Status, str | None]:
    """The status of an output that ended, and why it is incomplete."""
    if end.reason == "length":  # also by arguments that are too long: there is no reason for it
        return "incomplete", "max_output_tokens"
    return "completed", None


def usage_fields(usage: Usage) -> Fields:
    """The fields of ResponseUsage. Codex fails a turn without `reasoning_tokens`."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
