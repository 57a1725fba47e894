"""Why a message ended, in Anthropic's words."""

from typing import Any

from openai_frontend.serving.dialects.messages.reader import MessageJob
from openai_frontend.serving.output.completion_job import OutputEnd, Usage


def stop_reason(
    end: OutputEnd, usage: Usage, message: MessageJob, *, unfinished: bool
) -> dict[str, Any]:
    """The members of a message or of its last delta.

    `unfinished`: the arguments of the last call are incomplete. Clients know that only by
    `max_tokens`: with any other reason, they take what they have of the arguments for all of them.
    """
    reason, sequence = "end_turn", None
    if end.reason == "length":
        reason = _length(usage, message)
    elif unfinished:
        reason = "max_tokens"
    elif isinstance(end.stopped_by, str) and end.reason != "calls":
        reason, sequence = "stop_sequence", end.stopped_by
    elif end.reason == "calls":
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}


def _length(usage: Usage, message: MessageJob) -> str:
    """Whether the context ended the output, before the tokens that the request allows."""
    context = message.job.model.facts.max_model_len
    fewer = usage.completion_tokens < message.options.max_tokens
    full = context is not None and usage.prompt_tokens + usage.completion_tokens >= context
    return "model_context_window_exceeded" if fewer and full else "max_tokens"
