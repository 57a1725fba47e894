"""A stream of OpenAI's chunks: a frame for each event. `sse.py` knows the bytes of a frame."""

from collections.abc import Mapping
from typing import Any, Generic

from openai_frontend.serving.dialects.event_writer import EventWriter
from openai_frontend.serving.dialects.response_fields import (
    finish_reason,
    leading_fields,
    usage_fields,
)
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.logprobs import Form, logprobs_writer
from openai_frontend.serving.output.stream import UnreportedTokens
from openai_frontend.sse import DONE, ChunkFrames, ChunkShape, Logprobs, error_event


class ChunkWriter(EventWriter, Generic[Form]):
    """The common part of the writers of chats and completions; see `output.stream.Writer`."""

    def __init__(self, job: CompletionJob, shape: ChunkShape, form: type[Form]) -> None:
        """`form` is the endpoint's form of log probabilities."""
        self._job = job
        self._options = options = job.options
        has_logprobs = options.logprobs is not None
        self._logprobs = [
            logprobs_writer(job.model, options, form) for _ in job.requests if has_logprobs
        ]
        self._frames = ChunkFrames(
            shape,
            leading_fields(job),
            choices=len(job.requests),
            usage_field=options.include_usage,
            obfuscate=options.obfuscate,
        )
        self.text = self._frames.text  # see `Writer.text`

    def opening(self) -> bytes:
        """The opening frame of every choice, and what precedes the output."""
        choices = range(len(self._job.requests))
        prompts = [self._prompt_fields(choice) for choice in choices]
        opening = self._frames.opening(prompts, may_call=self._job.tools.in_use)
        frames = [self._before_output(choice, opened=bool(opening)) for choice in choices]
        return b"".join([opening, *frames])

    def _before_output(self, choice: int, *, opened: bool) -> bytes:
        """The echoed prompt, and its token ids unless an opening frame had them."""
        text = "" if self._options.echo_logprobs else self._job.echo_text(choice)
        fields = {} if opened else self._prompt_fields(choice)
        return self._frames.detailed(choice, text, fields=fields) if text or fields else b""

    def _prompt_fields(self, choice: int) -> dict[str, Any]:
        if not self._options.token_ids:
            return {}
        return {"prompt_token_ids": self._job.prompt_token_ids(choice)}

    def _reported(
        self, choice: int, tokens: UnreportedTokens | None
    ) -> tuple[Logprobs | None, Mapping[str, Any] | None]:
        """Log probabilities and fields of a frame that reports the tokens."""
        if tokens is None:
            return None, None
        positions, ids = tokens.take()
        logprobs = self._logprobs[choice].fragment(positions) if positions else None
        return logprobs, {"token_ids": ids} if self._options.token_ids else None

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        """The frame with the finish reason."""
        return self._frames.finish(choice, finish_reason(end, self._job.tools))

    def count(self, usage: Usage) -> None:
        """The next frames have these counts."""
        self._frames.usage_so_far(usage_fields(usage))

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """One event with the error."""
        return error_event(failure.body)

    def closing(self, usage: Usage) -> bytes:
        """The usage if requested, and [DONE]."""
        if not self._options.include_usage:
            return DONE
        return self._frames.usage(usage_fields(usage)) + DONE
