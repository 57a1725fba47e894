"""A corrupt or missing tokenizer affects only its own model and can be repaired."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests import mock_models
from tests.api.models.conftest import EXPLICIT, live
from tests.fast.prompting import tiny_tokenizer
from tests.resilience.faults.asking import unready

GOOD, CORRUPT, MISSING = "good", "corrupt", "missing"


def write(repository: Path) -> Path:
    """Write the three models; return the folder of the corrupt tokenizer."""
    mock_models.write_with_tokenizer(repository, GOOD, answer_tokens=1)
    shutil.rmtree(mock_models.write_with_tokenizer(repository, MISSING))
    corrupt = mock_models.write_with_tokenizer(repository, CORRUPT, answer_tokens=1)
    (corrupt / "tokenizer.json").write_text("{")
    return corrupt


@pytest.mark.slow
async def test_other_models_serve_beside_a_broken_tokenizer(tmp_path: Path) -> None:
    """Readiness names both broken models with the reason, and requests to them get Retry-After.
    Once the files are correct, a load makes the model serve.
    """
    folder = write(tmp_path)
    async with asyncio.timeout(300), live(tmp_path, load_model=["*"], **EXPLICIT) as gateway:
        ready = await gateway.client.get("/health/ready")
        broken = [await gateway.chat(name) for name in (CORRUPT, MISSING)]
        served = await gateway.chat(GOOD)
        tiny_tokenizer.write(folder)
        loaded = await gateway.change(CORRUPT, "load")
        mended = await gateway.chat(CORRUPT)
        left = await unready(gateway.client)

    reasons = ready.json().get("models", {})
    assert (ready.status_code, set(reasons)) == (503, {CORRUPT, MISSING})
    assert all(each.startswith("its tokenizer cannot be loaded: ") for each in reasons.values())
    assert [each.status_code for each in broken] == [503, 503]
    assert {each.json()["error"]["code"] for each in broken} == {"model_unavailable"}
    assert all("retry-after" in each.headers for each in broken)
    assert (served.status_code, loaded.status_code, mended.status_code) == (200, 200, 200)
    assert set(left) == {MISSING}
