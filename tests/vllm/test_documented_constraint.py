"""The plug-in of docs/structured-output.md, installed as a reader would install it."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.request.tools import NO_TOOLS
from openai_frontend.triton import Server
from schemas.sampling import SamplingFields
from tests.gateway_process import ROOT
from tests.vllm.conftest import Models
from tests.vllm.requests import answer

EXAMPLES = ROOT / "docs" / "examples"
QUESTION = "<|im_start|>user\nWhat is Triton?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The examples as an installed package, with the entry point of the page."""
    installed = tmp_path / "characters-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: characters\nVersion: 1\n")
    _, shown = (ROOT / "docs" / "structured-output.md").read_text().split("```toml\n", 1)
    line = shown.split("```")[0].splitlines()[1].replace('"', "")
    (installed / "entry_points.txt").write_text(f"[{plugin.GROUP}]\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    plugin.installed.cache_clear()
    yield
    plugin.installed.cache_clear()


@pytest_asyncio.fixture(loop_scope="session")
async def masked(package, models_beside: Models):
    """The demo model with the logits processor of the page."""
    folder = models_beside.repository / "masked"
    shutil.copytree(ROOT / "model_repository" / "demo", folder)
    _, shown = (ROOT / "docs" / "structured-output.md").read_text().split("```json\n", 1)
    asked = json.loads(shown.split("```")[0])
    path = folder / "1" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **asked}))
    async with models_beside.loaded("masked") as server:
        yield server


def extra_args(**fields: object) -> dict[str, object]:
    request = SamplingFields.model_validate({"model": "demo", **fields})
    return dict(constraint(request, NO_TOOLS, PLAIN, reasoning_open=None).extra_args)


def test_documented_plug_in_is_found(package):
    """Its entry point is found. Only requests with `characters` in their metadata use it."""
    assert [each.name for each in plugin.installed()] == ["characters"]
    assert extra_args() == {}
    assert extra_args(metadata={"characters": "ab"}) == {
        "logits_processor": "characters",
        "characters": "ab",
    }


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_documented_mask_restricts_characters(masked: Server):
    """The answer has no other characters; a concurrent request is unaffected."""
    asked = extra_args(metadata={"characters": "Triton is a server."})

    held = await answer(
        masked, "masked", QUESTION, extra_args=asked, max_tokens=40, temperature=1.5
    )
    free = await answer(masked, "masked", QUESTION, max_tokens=40)

    assert held.text
    assert set(held.text) <= set("Triton is a server.")
    assert set(free.text) > set("Triton is a server.")


def test_invalid_plug_in_stops_the_start(package, monkeypatch: pytest.MonkeyPatch):
    """The entry point's target is checked when the server starts, not at the first request."""
    monkeypatch.setattr(importlib.import_module("characters"), "Characters", dict)
    with pytest.raises(TypeError, match="'characters'"):
        plugin.installed()
