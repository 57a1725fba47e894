"""Adapters served as models by the real core."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import GatewayError, ModelNotFound, ModelUnavailable
from openai_frontend.generation import Adapter, GenerationRequest, SamplingParams
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.served_model import ServedModel
from openai_frontend.routers.described_model import MediaLimits, model_of, models_of
from openai_frontend.serving.request.audio import AudioLimits
from openai_frontend.serving.request.images import ImageLimits
from tests import mock_models
from tests.fast.lora.files import write_peft
from tests.mock_models import serving


def write(repository: Path, name: str, *adapters: str, **arguments: Any) -> Path:
    """A model with adapters in a folder of its own, which is watched."""
    mock_models.write(repository, name, max_lora_rank=16, tokens=["base"], **arguments)
    options = "adapter_folder: adapters\n" if adapters else ""
    (repository / name / "openai_frontend.yaml").write_text(options)
    for adapter in adapters:
        write_peft(repository / name / "adapters" / adapter)
    return repository / name


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[ModelRegistry]:
    """`base` has the adapters `one` and `both`, `other` has `both`."""
    write(tmp_path, "base", "one", "both")
    (tmp_path / "base" / "openai_frontend.yaml").write_text(
        "adapter_folder: adapters\naliases: [nick]\n"
    )
    write(tmp_path, "other", "both")
    mock_models.write(tmp_path, "plain")
    async with serving(tmp_path) as started:
        yield started


async def say(model: ServedModel) -> str:
    request = GenerationRequest(
        request_id="r", prompt="hi", sampling_params=SamplingParams(max_tokens=1)
    )
    bursts = [burst async for burst in model.generate(request)]
    return "".join(delta.text for burst in bursts for delta in burst)


async def test_adapter_names(registry: ModelRegistry) -> None:
    """`base:adapter` with each name of the base; the adapter's name alone if it is unique."""
    expected = {
        "base": "base",
        "base:one": " one",
        "base:both": " both",
        "base@1:one": " one",
        "nick:one": " one",
        "one": " one",  # nobody else's
        "other:both": " both",
    }
    models = [registry.get(name) for name in expected]

    assert [model.name for model in models] == [*expected]
    assert {model.name: await say(model) for model in models} == expected


async def test_unknown_adapter_names(registry: ModelRegistry) -> None:
    """404, whichever part of the name exists."""
    expected = {
        "base:nobody": "The model 'base' has no adapter 'nobody'",
        "plain:one": "The model 'plain' has no adapter 'one'",
        "both": "does not exist",  # which of the two?
        "nobody:one": "does not exist",
        "base:": "has no adapter ''",
        "base:one:one": "does not exist",
        "base:../adapters/one": "has no adapter",
        "base:/etc": "has no adapter",
        "../base:one": "does not exist",
        "base:one\0": "has no adapter",
        ":one": "does not exist",
    }
    for name, message in expected.items():
        with pytest.raises(ModelNotFound, match=message) as refused:
            registry.get(name)
        assert refused.value.param == "model"


async def test_listed_with_parent_and_root(registry: ModelRegistry) -> None:
    """The parent is the base, the root the adapter's name: no path of this machine."""
    cards = {card.name: card for card in registry.cards()}
    adapters = {name: (card.root, card.parent) for name, card in cards.items() if ":" in name}

    assert adapters == {
        "base:both": ("both", "base"),
        "base:one": ("one", "base"),
        "other:both": ("both", "other"),
    }
    assert (cards["base"].root, cards["base"].parent) == ("base", None)
    one, base = cards["base:one"], cards["base"]
    assert (one.facts.max_model_len, one.ready) == (base.facts.max_model_len, True)
    assert base.capabilities - one.capabilities == {"embeddings", "rerank"}


async def test_listed_as_it_is_described_alone(registry: ModelRegistry) -> None:
    """The list copies the first adapter of a base; each must be what its own description says."""
    limits = MediaLimits(images=ImageLimits(), audio=AudioLimits())
    cards = registry.cards()

    assert cards == [registry.card(card.name) for card in cards]
    assert models_of(cards, limits) == [model_of(card, limits) for card in cards]


async def test_requests_share_the_model_of_an_adapter(tmp_path: Path) -> None:
    """Until the adapter or its base is another one."""
    folder = write(tmp_path, "base", "one")
    async with serving(tmp_path) as registry:
        first, again = registry.get("base:one"), registry.get("base:one")
        write_peft(folder / "adapters" / "one", lora_alpha=16, note="longer than before")
        await registry.refresh_adapters()
        changed = registry.get("base:one")
        await registry.refresh(reloaded="base")
        reloaded = registry.get("base:one")

    assert again is first
    assert changed.adapter is not first.adapter
    assert reloaded is not changed


async def test_many_adapters_are_scanned_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the scans of an idle server take a bounded share of a core."""
    write(tmp_path, "base", "one")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise asyncio.CancelledError

    async with serving(tmp_path) as registry:
        await registry.refresh_adapters()
        monkeypatch.setattr("openai_frontend.models.registry._SCAN_SHARE", 1e-6)
        monkeypatch.setattr("openai_frontend.models.registry.asyncio.sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await registry.watch_adapters(0.001)

    assert waits[0] > 10  # a scan takes more than 10 us
    assert waits[1] > 10


async def test_short_name_is_an_alias(registry: ModelRegistry) -> None:
    """The card of the short name refers to the listed model."""
    card = registry.card("one")

    assert (card.name, card.alias_of, card.parent) == ("one", "base:one", "base")
    assert registry.card("base:one").alias_of is None


async def test_model_names_take_precedence(tmp_path: Path) -> None:
    """An adapter with a model's name is available only behind its base."""
    write(tmp_path, "base", "plain")
    mock_models.write(tmp_path, "plain")
    async with serving(tmp_path) as registry:
        assert await say(registry.get("base:plain")) == " plain"
        assert registry.get("plain").adapter is None


async def test_scan_adds_and_removes_adapters(tmp_path: Path) -> None:
    """The next scan applies; running requests keep their adapter."""
    folder = write(tmp_path, "base", "one")
    async with serving(tmp_path) as registry:
        (folder / "adapters" / "one").rename(folder / "adapters" / "two")
        await registry.refresh_adapters()
        names = [card.name for card in registry.cards()]
        said = await say(registry.get("base:two"))
        with pytest.raises(ModelNotFound):
            registry.get("base:one")

    assert names == ["base", "base:two"]
    assert said == " two"


async def test_changed_file_is_a_new_adapter(tmp_path: Path) -> None:
    """A rewritten file gets a new id, so backends cache it separately."""
    folder = write(tmp_path, "base", "one")
    ids = []
    async with serving(tmp_path) as registry:
        for rank in (4, 8):
            write_peft(folder / "adapters" / "one", rank=rank)
            await registry.refresh_adapters()
            adapter = registry.get("base:one").adapter
            assert adapter is not None
            ids.append(adapter.id)

    assert ids[0] != ids[1]


async def test_reloaded_engine_has_its_adapters(tmp_path: Path) -> None:
    """Even between its load and the next scan."""
    write(tmp_path, "base", "one")
    async with serving(tmp_path, model_control_mode="explicit") as registry:
        before = registry.get("base:one")
        config = tmp_path / "base" / "config.pbtxt"
        config.write_text(config.read_text() + "\n# changed\n")
        (tmp_path / "base" / "1" / "model.json").write_text(
            json.dumps({"max_lora_rank": 16, "tokens": ["changed"]})
        )
        await registry._server.load_model("base")
        assert await say(before) == " one"
        await registry.refresh()
        assert await say(registry.get("base:one")) == " one"


async def test_invalid_adapter(tmp_path: Path) -> None:
    """503 with the reason, which is also in its card; it is not listed, and its base serves."""
    folder = write(tmp_path, "base", "one")
    write_peft(folder / "adapters" / "one", rank=32)
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelUnavailable, match="'base:one' cannot serve: its rank of 32"):
            registry.get("base:one")
        card = registry.card("base:one")
        names = [each.name for each in registry.cards()]

    assert names == ["base"]
    assert not card.ready
    assert card.parent == "base"
    assert "its rank of 32 exceeds the model's max_lora_rank of 16" in (card.error or "")


async def test_adapter_of_a_failed_base(tmp_path: Path) -> None:
    """The reason is the base's."""
    write(tmp_path, "base", "one", fail_at_load="no weights")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelUnavailable, match=r"its base model cannot serve: .*no weights"):
            registry.get("base:one")


async def test_adapters_in_a_setting(tmp_path: Path) -> None:
    """The setting `model_option` accepts what the model's file accepts."""
    write(tmp_path, "base")
    lying = write_peft(tmp_path.parent / "lying")
    text = f"mine={lying}"
    options = ModelOptions.model_validate({"adapters": text})
    async with serving(tmp_path, settings={"base": options}) as registry:
        assert await say(registry.get("base:mine")) == " mine"


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b,", "a=b,a=c"])
def test_invalid_adapters_in_a_setting(text: str) -> None:
    """Including two with the same name."""
    with pytest.raises(ValueError, match=r"must have the form NAME=PATH|contains a name twice"):
        ModelOptions.model_validate({"adapters": text})


async def test_client_cannot_choose_a_folder(registry: ModelRegistry) -> None:
    """The engine uses its own table, whatever an adapter in a request says."""
    base = registry.get("base")
    forged = GenerationRequest(
        request_id="r", prompt="hi", adapter=Adapter(name="../evil", id=1, path=Path("/evil"))
    )

    with pytest.raises(ModelNotFound, match="no adapter with that name"):
        [burst async for burst in base.generate(forged)]


async def test_missing_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model serves without adapters until the folder is back."""
    folder = write(tmp_path, "base")
    (folder / "openai_frontend.yaml").write_text("adapter_folder: later\n")
    async with serving(tmp_path) as registry:
        assert [card.name for card in registry.cards()] == ["base"]
        write_peft(folder / "later" / "one")
        await registry.refresh_adapters()
        assert [card.name for card in registry.cards()] == ["base", "base:one"]
    assert "cannot read adapter_folder" in caplog.text


async def test_no_scan_before_the_models_are_known(tmp_path: Path) -> None:
    """The first scan of adapters follows the first refresh of models."""
    async with serving(tmp_path) as registry:
        fresh = ModelRegistry(registry._server, ModelLoader(registry._server))
        with pytest.raises(GatewayError, match="still loading"):
            await fresh.refresh_adapters()
        fresh.close()
