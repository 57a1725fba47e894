"""Moderation: the scores of a classifier as those of OpenAI's categories."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.models.moderation import CategoryScores, ModerationPolicy, highest
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    Pooler,
    Row,
    Text,
    at_once,
    class_scores,
    embedding_requests,
    rendering_cost_us,
    tokenize_inputs,
)
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_CLASSIFICATION, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media_parts import MediaPart, unsupported_media
from schemas.moderations import ModerationPart, ModerationRequest

_RESULT_US = 13.0  # event loop time of one result as JSON


@dataclass(frozen=True, slots=True)
class Moderator:
    """Scores texts with the classifiers that the operator has mapped to categories."""

    limits: InferenceLimits
    pooler: Pooler

    async def run(
        self,
        texts: Sequence[Text],
        model: ServingModel,
        id: str,
        render: Callable[[CategoryScores], Row],
        *,
        reserves: bool = True,
    ) -> list[Row]:
        """Render the scores of each text, in one request to the core if the model takes that
        many. `reserves` as of `Pooler.run`.
        """
        policy, labels = moderation_of(model), model.facts.labels or ()
        prompts = await tokenize_inputs(texts, model)
        self.limits.check_input_tokens(sum(len(each.token_ids) for each in prompts))
        pooled = await self.pooler.run(
            embedding_requests(id, prompts, task="classify"),
            prompts,
            model,
            render=at_once(
                lambda at, vector: render(policy.scores(class_scores(at, vector, labels).tolist())),
                lambda vector: _RESULT_US + rendering_cost_us(vector, as_base64=False),
            ),
            reserves=reserves,
        )
        return pooled.rows


def moderation_of(model: ServingModel) -> ModerationPolicy:
    """The model's mapping. Raises InvalidRequest for a model without one."""
    if model.moderation is None or "classify" not in model.tasks:
        message = f"The model '{model.name}' does not moderate: it has no option `moderation`."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    return model.moderation


class Moderations:
    """POST /v1/moderations, independent of HTTP."""

    def __init__(self, limits: InferenceLimits, policy: FieldPolicy, admission: Admission) -> None:
        self._policy = policy
        self._admission = admission
        self._moderator = Moderator(limits, Pooler(admission))

    async def create(self, request: ModerationRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_CLASSIFICATION)
        policy, id = moderation_of(model), new_id("modr")
        texts, joined = self._texts(request)
        if joined:
            scores = await self._moderator.run(texts, model, id, tuple)
            rows = [orjson.dumps(policy.result(highest(scores)))]
        else:
            rows = await self._moderator.run(
                texts, model, id, lambda each: orjson.dumps(policy.result(each))
            )
        fields = orjson.dumps({"id": id, "model": model.name})
        return b'%b,"results":[%b]}' % (fields[:-1], b",".join(rows))

    def _texts(self, request: ModerationRequest) -> tuple[list[Text], bool]:
        """The texts, and whether they are one input."""
        if isinstance(request.input, str):
            return [Text(request.input, "input")], False
        self._moderator.limits.check_inputs(len(request.input))
        inputs: Sequence[str | ModerationPart] = request.input
        texts = [_text(each, f"input[{at}]") for at, each in enumerate(inputs)]
        return texts, isinstance(inputs[0], ModerationPart)


def _text(part: str | ModerationPart, place: str) -> Text:
    if isinstance(part, str):
        return Text(part, place)
    if part.type == "image_url":
        raise unsupported_media(MediaPart({"type": part.type}, place))
    if part.image_url is not None:  # else its text alone would decide
        param = f"{place}.image_url"
        message = f"Unsupported parameter: '{param}' cannot be used with the type 'text'."
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    param = f"{place}.text"
    if part.text is None:
        message = f"Missing required parameter: '{param}'."
        raise InvalidRequest(message, param=param, code="missing_required_parameter")
    return Text(part.text, param)
