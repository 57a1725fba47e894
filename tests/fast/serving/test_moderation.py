"""POST /v1/moderations without HTTP."""

import re
from typing import Any

import openai.types
import pytest

from openai_frontend.config.moderation_options import ModerationOptions
from openai_frontend.errors import InvalidRequest, MalformedOutput
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.moderation import moderation_policy
from openai_frontend.serving.moderation import Moderations
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.moderations import ModerationCreateResponse, ModerationRequest
from tests.fast.serving.fake_model import admission
from tests.fast.serving.fake_pooling_model import FakePoolingModel

LABELS = ("fine", "rude", "brutal")
POLICY = moderation_policy(
    ModerationOptions.model_validate({"labels": {"rude": "harassment", "brutal": "violence"}}),
    LABELS,
)
VECTORS = {"fine": (1, 0, 0), "rude": (0, 1, 0), "brutal": (0, 0.25, 0.75)}


class Classifier(FakePoolingModel):
    moderation = POLICY

    def __init__(self, **options: Any) -> None:
        super().__init__(tasks=("classify",), vectors=VECTORS, max_model_len=99, **options)

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(max_model_len=self.max_model_len, vocab_size=300, labels=LABELS)


async def create(model: Classifier, input: Any, **limits: int) -> ModerationCreateResponse:
    policy = FieldPolicy("reject")
    endpoint = Moderations(InferenceLimits(**limits), policy, admission(99))
    request = ModerationRequest.model_validate({"input": input})
    body = await endpoint.create(request, model)  # type: ignore[arg-type]
    openai.types.ModerationCreateResponse.model_validate_json(body, strict=True)
    return ModerationCreateResponse.model_validate_json(body, strict=True)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


@pytest.mark.parametrize(
    ("input", "expected"),
    [
        ("rude", [{"harassment"}]),
        (["fine", "rude", "brutal"], [set(), {"harassment"}, {"violence"}]),
        (parts("fine"), [set()]),
        (parts("rude", "brutal"), [{"harassment", "violence"}]),  # one input
    ],
)
async def test_each_input_has_a_result(input, expected):
    answer = await create(Classifier(), input)

    flagged = [{name for name, flag in each.categories.items() if flag} for each in answer.results]
    assert flagged == expected
    assert [each.flagged for each in answer.results] == list(map(bool, expected))
    assert re.fullmatch("modr-[0-9a-f]{32}", answer.id)
    assert answer.model == "fake"


@pytest.mark.parametrize("input", [["fine"] * 32, parts(*["fine"] * 32)])
async def test_inputs_share_one_request(input):
    model = Classifier()

    await create(model, input)

    assert model.batches == [32]


async def test_image_is_refused_by_name():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

    with pytest.raises(InvalidRequest) as refused:
        await create(Classifier(), [*parts("fine"), image])

    assert refused.value.param == "input[1].type"
    assert "image_url" in refused.value.message


async def test_text_with_an_image_is_refused_by_name():
    """The score would be that of the text alone."""
    part = {**parts("fine")[0], "image_url": {"url": "data:image/png;base64,AA=="}}

    with pytest.raises(InvalidRequest) as refused:
        await create(Classifier(), [*parts("fine"), part])

    assert refused.value.param == "input[1].image_url"


@pytest.mark.parametrize("input", [["fine"] * 9, parts(*["fine"] * 9)])
async def test_too_many_inputs_are_refused(input):
    with pytest.raises(InvalidRequest, match="maximum length 8"):
        await create(Classifier(), input, max_inputs=8)


@pytest.mark.parametrize(
    "scores", [(0, float("nan"), 0), (float("inf"), 0, 0), (1, 0), (1, 0, 0, 0)]
)
async def test_scores_that_do_not_fit_are_an_error(scores):
    model = Classifier()
    model._vectors, model.dimensions = {"odd": scores}, len(scores)

    with pytest.raises(MalformedOutput, match=r"input\[0\]"):
        await create(model, "odd")


async def test_model_without_a_mapping_is_refused():
    model = Classifier()
    model.moderation = None  # type: ignore[assignment]

    with pytest.raises(InvalidRequest, match="has no option `moderation`") as refused:
        await create(model, "fine")

    assert refused.value.code == "unsupported_model"
