"""The labels of a model's metrics, independent of the requested name."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from openai_frontend.admission.queue import ConcurrencyLimits
from openai_frontend.models import supervisor
from tests import mock_models
from tests.api.models.conftest import LiveGateway
from tests.core.triton.waiting import until
from tests.fast.lora.files import write_peft

OWN = "openai_frontend_"
# Name in a request -> version and adapter that answer it
NAMES = {
    "m": ("2", ""),
    "nick": ("2", ""),
    "m@1": ("1", ""),
    "nick@2": ("2", ""),
    "m:one": ("2", "one"),
    "nick:one": ("2", "one"),
    "m@1:one": ("1", "one"),
    "one": ("2", "one"),
}
HANGS_AFTER = 3  # tokens of one answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect a hanging engine immediately: the timeouts have their own tests."""
    monkeypatch.setattr(supervisor, "MIN_DELAY_S", 0.0)
    monkeypatch.setattr(supervisor, "RESPOND_WITHIN_S", 0.02)


def write(repository: Path) -> None:
    """The model `m` with two versions, an alias and an adapter."""
    config = mock_models.CONFIG + "version_policy { all {} }\n"
    arguments = {"max_lora_rank": 16, "hang_after_tokens": HANGS_AFTER}
    mock_models.write_with_tokenizer(repository, "m", config=config, **arguments)
    (repository / "m" / "1").rename(repository / "m" / "2")
    mock_models.write_with_tokenizer(repository, "m", config=config, **arguments)
    write_peft(repository / "m" / "adapters" / "one")
    (repository / "m" / "openai_frontend.yaml").write_text(
        "aliases: [nick]\nadapter_folder: adapters\ninter_token_timeout_s: 0.1\n"
    )


async def samples(gateway: LiveGateway) -> list[Sample]:
    """Of the gateway's own families."""
    accept = {"accept": "application/openmetrics-text"}
    text = (await gateway.client.get("/metrics", headers=accept)).text
    return [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith(OWN)
    ]


def value(told: list[Sample], name: str, **labels: str) -> float:
    """The sum of a family's samples that have these labels."""
    wanted = labels.items()
    named = [each for each in told if each.name == OWN + name]
    return sum(each.value for each in named if wanted <= each.labels.items())


async def test_all_names_share_one_model_label(repository, live_gateway):
    """Requests by alias, version and adapter count for the same `model` in all families of
    requests.
    """
    write(repository)
    async with live_gateway(max_concurrent_requests=1) as gateway:
        slots = gateway.state.limiter.slots("m", ConcurrencyLimits())
        await slots.acquire(1)
        asked = [asyncio.create_task(gateway.complete(name, max_tokens=1)) for name in NAMES]
        await until(lambda: len(slots.queue) == len(NAMES))
        slots.release(1)
        answers = await asyncio.gather(*asked)
        hung = await gateway.complete("nick:one", max_tokens=HANGS_AFTER + 1, stream=True)
        await until(lambda: gateway.server.model_is_ready("m"))
        told = await samples(gateway)

    assert [answer.status_code for answer in answers] == [200] * len(NAMES)
    assert "engine_stalled" in hung.text
    assert {each.labels["model"] for each in told if "model" in each.labels} == {"m"}
    assert value(told, "requests_total", model="m", status="200") == len(NAMES) + 1
    assert value(told, "queue_wait_seconds_count", model="m") == len(NAMES)
    assert value(told, "engine_stalls_total", model="m") == 1
    assert value(told, "engine_restarts_total", model="m") == 1
    answered = {
        tuple(each.labels[label] for label in ("version", "adapter")): each.value
        for each in told
        if each.name == f"{OWN}generations_total" and each.labels["finish_reason"] == "length"
    }
    assert answered == Counter(NAMES.values())
