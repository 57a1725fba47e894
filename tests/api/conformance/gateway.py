"""A pytest plugin: one gateway with a mock model, for engine-independent behaviour."""

from collections.abc import Iterator

import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess

TOKENS = ["Hello", " there", ",", " how", " are", " you", "?", "\n", " Größe", " 日本", " 🙂", "."]


@pytest.fixture(scope="session")
def mock_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """`mock` answers with twelve fixed tokens and runs enough sequences for one request."""
    folder = tmp_path_factory.mktemp("mock_gateway")
    mock_models.write_with_tokenizer(folder / "models", "mock", tokens=TOKENS, answer_tokens=12)
    with GatewayProcess(
        folder / "models", folder / "log", "--max-concurrent-requests=2048"
    ) as process:
        process.wait_until_ready()
        yield process
