"""Fields of /v1/moderations, with mock classifiers whose scores depend on the prompt's tokens."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.api.models.test_on_demand import options
from tests.gateway_process import GatewayProcess

honours, refuses = pytest.mark.honours, pytest.mark.refuses
TEXT = {"type": "text", "text": "one"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("moderation")
    for name, category in (("hateful", "hate"), ("violent", "violence")):
        mock_models.write_with_tokenizer(
            folder / "models", name, tasks=["classify"], labels=["fine", "bad"]
        )
        options(folder / "models", name, f"moderation: {{labels: {{bad: {category}}}}}")
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        with httpx.Client(base_url=process.url, timeout=120) as made:
            yield made


def post(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/moderations", json={"model": "hateful", **fields})


def scores(client: httpx.Client, **fields: Any) -> list[Any]:
    answer = post(client, **fields)
    assert answer.status_code == 200, answer.text
    return [each["category_scores"] for each in answer.json()["results"]]


@honours("moderations.input")
def test_each_input_is_moderated(client):
    one, other = (scores(client, input=text)[0] for text in ("one", "other"))

    assert one != other
    assert scores(client, input=["one", "other"]) == [one, other]


@honours("moderations.input.text")
def test_parts_are_one_input(client):
    """Its score is the highest of its texts."""
    each = scores(client, input=["one", "other"])

    [score] = scores(client, input=[TEXT, {**TEXT, "text": "other"}])
    assert score == {name: max(one[name] for one in each) for name in each[0]}


@honours("moderations.model")
def test_model_decides_the_categories(client):
    [hate], [violence] = (
        scores(client, model=name, input="one") for name in ("hateful", "violent")
    )

    assert (hate["violence"], violence["hate"]) == (0, 0)
    assert hate["hate"] == violence["violence"] != 0


@refuses("moderations.input.image_url", "moderations.input.image_url.url")
def test_image_is_refused(client):
    """No model here moderates images."""
    error = post(client, input=[TEXT, IMAGE]).json()["error"]

    assert error["param"] == "input[1].type"
    assert "image" in error["message"]
