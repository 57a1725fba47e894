"""The real core and vLLM load what `init-repo` and `serve MODEL` write."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend.cli.model_directory import read_config
from openai_frontend.triton import Options, Server
from tests import hugging_face_cache
from tests.gateway_process import GatewayProcess
from tests.medium.cli.test_init_repo import DEMO, init

# Replaces NVIDIA's programs and backends: a Python model that gets no requests
PROGRAM = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def stand_in(folder: Path) -> None:
    """Replaces NVIDIA's backend by the Python backend and keeps the rest."""
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "vllm"', 'backend: "python"'))
    (folder / "1" / "model.py").write_text(PROGRAM)


def tensors(config: dict[str, Any], side: str) -> dict[str, Any]:
    """The core's description of each tensor, without unset members."""
    return {
        tensor["name"]: (
            tensor["data_type"],
            [int(size) for size in tensor["dims"]],
            tensor.get("optional", False),
        )
        for tensor in config[side]
    }


async def test_core_loads_the_repository(tmp_path: Path) -> None:
    """Models of NVIDIA's two backends load with the intended tensors."""

    repository = tmp_path / "r"
    init(repository, DEMO, "--kind", "vllm", "--name", "of-vllm")
    init(repository, DEMO, "--kind", "llmapi", "--name", "of-llmapi", code=3)
    written = {path.name: read_config(path, None) for path in repository.iterdir()}
    for name in written:
        stand_in(repository / name)

    server = Server(Options(model_repositories=[repository]))
    await server.start()
    try:
        states = {entry.name: (entry.state, entry.reason) for entry in server.model_index()}
        assert states == dict.fromkeys(written, ("READY", ""))
        for name, config in written.items():
            loaded = server.model_config(name)
            for side in ("input", "output"):
                assert tensors(loaded, side) == tensors(config, side)
            assert loaded["max_batch_size"] == config.get("max_batch_size", 0)
            assert loaded.get("parameters", {}) == config.get("parameters", {})
    finally:
        await server.stop()


@pytest.mark.engine
def test_serve_hub_model_answers(tmp_path: Path) -> None:
    """One command serves a model from Hugging Face's cache under the given name."""

    hugging_face_cache.write(tmp_path / "hub", "acme/tiny", DEMO)
    # vLLM's own cache, without which it starts a process to inspect the model's class: 10 s of CPU
    vllm_cache = str(Path.home() / ".cache" / "vllm")
    question = [{"role": "user", "content": "What is Triton?"}]
    with GatewayProcess(
        "acme/tiny",
        tmp_path / "log",
        "--served-model-name=talk",
        "--engine-arg=max_model_len=512",
        environment={
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "XDG_CACHE_HOME": str(tmp_path),
            "VLLM_CACHE_ROOT": vllm_cache,
        },
    ) as gateway:
        gateway.wait_until_ready()
        answer = httpx.post(
            f"{gateway.url}/v1/chat/completions",
            json={"model": "talk", "messages": question, "temperature": 0},
            timeout=300,
        ).json()
        cards = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
        assert gateway.stop() == 0

    assert "Triton" in answer["choices"][0]["message"]["content"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("talk", 512)]
