"""A chat's guard: a moderation model that sees the prompt and the output, and may block them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from openai_frontend.errors import (
    GatewayError,
    InvalidRequest,
    ModelUnavailable,
    RateLimited,
    RequestCancelled,
    RequestTimedOut,
)
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.models.moderation import CategoryScores, ModerationPolicy, highest
from openai_frontend.serving.admission.concurrency_limit import Deltas
from openai_frontend.serving.admission.model import Describes, ServingModel
from openai_frontend.serving.error_reply import reply_for
from openai_frontend.serving.moderation import Moderator, moderation_of
from openai_frontend.serving.output.completion_job import CompletionJob, new_id
from openai_frontend.serving.output.sentences import SentenceBuffer, pieces, visible_text
from openai_frontend.serving.pooling import Text
from openai_frontend.serving.request.sampling import unsupported
from openai_frontend.serving.request.template_inputs import TEXT_PARTS
from schemas.chat_completions import ChatCompletionRequest, ModerationMode, ModerationParam

logger = logging.getLogger(__name__)

Stage = Literal["input", "output"]
CheckResult = Literal["passed", "flagged", "blocked", "failed"]
OnCheck = Callable[[str, Stage, CheckResult], None]  # the model's name in Triton


@dataclass(frozen=True, slots=True)
class GuardModel:
    """The guard that a request names, or why it cannot be used now."""

    name: str
    model: ServingModel | None
    failure: GatewayError | None = None
    fails_open: bool = False


@dataclass(slots=True)
class _Outcome:
    """Scores of the input or of the outputs, or the failure."""

    mode: ModerationMode
    scores: dict[int, CategoryScores] = field(default_factory=dict)  # by choice
    error: GatewayError | None = None


class ChatGuard:
    """The guard of one chat. `block` stops at what it flags, `score` only reports."""

    def __init__(
        self,
        named: GuardModel,
        moderator: Moderator,
        on_check: OnCheck,
        *,
        input_mode: ModerationMode,
        output_mode: ModerationMode,
    ) -> None:
        self._named = named
        self._moderator = moderator
        self._on_check = on_check
        self._input, self._output = _Outcome(input_mode), _Outcome(output_mode)
        self._choices = 0
        self._turn = asyncio.Lock()  # many choices must not fill the guard's queue
        self.blocks_prompt = False

    async def check_prompt(self, texts: Sequence[str]) -> None:
        """See the prompt before it is queued. Raises if the guard fails and must not."""
        if self._named.failure is not None and self._output.mode == "block":
            self._failed(self._named.failure, "output")
        scores = await self._scores([each for text in texts for each in pieces(text)], "input")
        if scores:
            self._input.scores[0] = highest(scores)
            flagged = self._policy().flags(self._input.scores[0])
            self.blocks_prompt = flagged and self._input.mode == "block"
            self._count("input", flagged=flagged)

    def read(self, deltas: Deltas, request: GenerationRequest) -> Deltas:
        """The deltas of the next choice, guarded."""
        choice, self._choices = self._choices, self._choices + 1
        if self._output.mode == "block":
            return self._guarded(choice, deltas, request)
        return self._scored(choice, deltas)

    def blocked(self, request: GenerationRequest) -> CompletionDelta:
        """The end of a choice that was blocked."""
        usage = request.usage
        usage.finish("stop", usage.completion_tokens)
        counts = TokenCounts(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            usage.image_tokens,
            usage.audio_tokens,
        )
        return CompletionDelta(finish_reason="content_filter", counts=counts)

    def fields(self) -> dict[str, Any]:
        """The field `moderation` of the response."""
        return {"input": self._reported(self._input), "output": self._reported(self._output)}

    async def _guarded(
        self, choice: int, deltas: Deltas, request: GenerationRequest
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        buffer = SentenceBuffer()
        async with aclosing(deltas):
            async for burst in deltas:
                sentences = buffer.feed(burst)
                if not sentences:
                    continue
                flags = await self._flags(choice, [each.text for each in sentences])
                released: list[CompletionDelta] = []
                for sentence, flagged in zip(sentences, flags, strict=True):
                    if flagged:
                        yield [*released, self.blocked(request)]
                        return
                    released += sentence.deltas
                yield released

    async def _flags(self, choice: int, texts: Sequence[str]) -> list[bool]:
        """Whether each sentence is flagged; none is if the guard fails open."""
        seen = [at for at, text in enumerate(texts) if text.strip()]
        scores = await self._scores([texts[at] for at in seen], "output")
        flags = [False] * len(texts)
        for at, each in zip(seen, scores, strict=False):
            self._add(choice, each)
            flags[at] = self._policy().flags(each)
            self._count("output", flagged=flags[at])
            if flags[at]:
                break
        return flags

    async def _scored(
        self, choice: int, deltas: Deltas
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """The output as it comes; its scores are known before its last delta is sent."""
        texts: list[str] = []
        async with aclosing(deltas):
            async for burst in deltas:
                texts += map(visible_text, burst)
                if any(each.finish_reason is not None for each in burst):
                    for each in await self._scores(pieces("".join(texts)), "output"):
                        self._add(choice, each)
                    if (found := self._output.scores.get(choice)) is not None:
                        self._count("output", flagged=self._policy().flags(found))
                yield burst

    def _add(self, choice: int, scores: CategoryScores) -> None:
        known = self._output.scores.get(choice)
        self._output.scores[choice] = scores if known is None else highest((known, scores))

    async def _scores(self, texts: Sequence[str], stage: Stage) -> list[CategoryScores]:
        """The scores of the texts; none if the guard fails and may."""
        named = self._named
        if not texts:
            return []
        try:
            if named.model is None:
                raise named.failure or ModelUnavailable("The moderation model cannot be used.")
            inputs = [Text(each, "moderation") for each in texts]
            id = new_id("modr")
            async with self._turn:
                return await self._moderator.run(inputs, named.model, id, tuple, reserves=False)
        except (RequestCancelled, RequestTimedOut, RateLimited):  # not the guard's failures
            raise
        except InvalidRequest as error:  # such as a text beyond its context, which a client chose
            message = f"The moderation model '{named.name}' cannot check the {stage}: "
            raise InvalidRequest(message + error.message, param="moderation.model") from error
        except GatewayError as error:
            self._failed(error, stage)
            return []

    def _failed(self, error: GatewayError, stage: Stage) -> None:
        """Log and count a failure. Raises it if the request must not pass unseen."""
        outcome = self._input if stage == "input" else self._output
        passes = outcome.mode == "score" or self._named.fails_open
        self._report(stage, "failed")
        if self._input.error is None and self._output.error is None:  # not for each sentence
            logger.warning(
                "moderation failed; model=%s stage=%s request=%s: %s",
                self._named.name,
                stage,
                "continues" if passes else "fails",
                error.message,
            )
        outcome.error = error
        if not passes:
            message = f"The moderation model '{self._named.name}' cannot check the {stage} now."
            raise ModelUnavailable(message) from error

    def _count(self, stage: Stage, *, flagged: bool) -> None:
        outcome = self._input if stage == "input" else self._output
        flag: CheckResult = "blocked" if outcome.mode == "block" else "flagged"
        self._report(stage, flag if flagged else "passed")

    def _report(self, stage: Stage, result: CheckResult) -> None:
        model = self._named.model
        self._on_check("" if model is None else model.model_name, stage, result)

    def _policy(self) -> ModerationPolicy:
        if self._named.model is None:
            raise RuntimeError("a guard without a model has no scores")
        return moderation_of(self._named.model)

    def _reported(self, outcome: _Outcome) -> dict[str, Any]:
        if outcome.error is not None:
            reply = reply_for(outcome.error)
            code = reply.error.code or reply.error.type
            return {"type": "error", "code": code, "message": reply.message}
        name = self._named.name
        results = [
            {"type": "moderation_result", "model": name, **self._policy().result(scores)}
            for _, scores in sorted(outcome.scores.items())
        ]
        return {"type": "moderation_results", "model": name, "results": results}


@dataclass(frozen=True, slots=True)
class Guards:
    """Makes the guards of chats."""

    moderator: Moderator
    on_check: OnCheck

    def guard(
        self, request: ChatCompletionRequest, named: GuardModel, model: Describes
    ) -> ChatGuard:
        """The request's guard. Raises InvalidRequest if its model cannot be one."""
        asked = request.moderation
        if asked is None:
            raise RuntimeError("the request has no guard")
        if request.use_beam_search:
            raise unsupported("use_beam_search")
        _check_names(asked)
        if named.model is not None:
            _check(named.model, model)
        policy = asked.policy
        modes = (None, None) if policy is None else (policy.input, policy.output)
        input_mode, output_mode = ("score" if each is None else each.mode for each in modes)
        if input_mode == "block":
            _check_prompt_is_text(request.messages)
        if output_mode == "block":
            _check_shows_text_only(request)
        return ChatGuard(
            named,
            self.moderator,
            self.on_check,
            input_mode=input_mode,
            output_mode=output_mode,
        )


def _check_names(asked: ModerationParam) -> None:
    """Whatever `unknown_fields` says: a misspelt policy would let pass what it should block."""
    policy = asked.policy
    stages = {} if policy is None else {"input": policy.input, "output": policy.output}
    places = {
        "moderation": asked,
        "moderation.policy": policy,
        **{f"moderation.policy.{name}": stage for name, stage in stages.items()},
    }
    for place, fields in places.items():
        for name in (fields and fields.model_extra) or ():
            path = f"{place}.{name}"[:64]
            message = f"Unknown parameter: '{path}'."
            raise InvalidRequest(message, param=path, code="unknown_parameter")


def _check_prompt_is_text(messages: Sequence[Mapping[str, Any]]) -> None:
    """A part that the guard cannot see would pass it."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if part.get("type") not in TEXT_PARTS:
                param = f"messages[{at}].content[{number}]"
                reason = (
                    f"The moderation model reads only text: '{param}' cannot be used with "
                    "moderation.policy.input.mode 'block'."
                )
                raise InvalidRequest(reason, param=param, code="unsupported_parameter")


def _check_shows_text_only(request: ChatCompletionRequest) -> None:
    """Tokens of a text that a parser still withholds would be sent before the guard sees it."""
    for name in ("logprobs", "return_token_ids"):
        if getattr(request, name):
            message = f"'{name}' cannot be used with moderation.policy.output.mode 'block'."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")


def _check(guard: ServingModel, model: Describes) -> None:
    param = "moderation.model"
    if guard.model_name == model.model_name:
        message = f"The model '{guard.name}' cannot moderate its own chats."
        raise InvalidRequest(message, param=param)
    try:
        moderation_of(guard)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=param, code=error.code) from None


def guarded(job: CompletionJob, guard: ChatGuard) -> CompletionJob:
    """The job with its guard. No text passes it by a native relay."""
    requests = [replace(each, relay=None) for each in job.requests]
    return replace(job, requests=requests, guard=guard)


def prompt_texts(request: ChatCompletionRequest) -> list[str]:
    """The texts of all documents and of all messages, whatever their role, with reasoning and
    arguments of calls.
    """
    texts = [text for document in request.documents or () for text in document.values()]
    messages: Sequence[Mapping[str, Any]] = request.messages
    for message in messages:
        reasoning = (message.get("reasoning"), message.get("reasoning_content"))
        texts += [each for each in reasoning if isinstance(each, str)]
        deprecated = {"function": message.get("function_call")}
        for call in (*(message.get("tool_calls") or ()), deprecated):
            made = (call.get("function") or {}).get("arguments")
            made = made or (call.get("custom") or {}).get("input")
            texts += [made] if isinstance(made, str) else []
        texts.append(_text_of(message.get("content")))
    return texts


def _text_of(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Parts as one text, as templates join them: a phrase may continue in the next part."""
    if isinstance(content, str):
        return content
    parts = [part.get(part["type"]) for part in content or () if part["type"] in TEXT_PARTS]
    return "\n".join(each for each in parts if isinstance(each, str))
