"""The real core and vLLM load what `init-repo` and `serve MODEL` write."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend.cli.model_directory import read_config
from openai_frontend.triton import Options, Server
from tests import hugging_face_cache
from tests.gateway_process import GatewayProcess
from tests.unit.cli.test_init_repo import DEMO, ENGINE, init

# Replaces NVIDIA's programs and backends: a Python model that gets no requests
PROGRAM = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
NVIDIA_BACKENDS = ('backend: "vllm"', 'backend: "tensorrtllm"')


def write_all_kinds(repository: Path, engine: Path) -> None:
    """All three of NVIDIA's kinds, as the command writes them, in one repository."""
    engine.mkdir()
    (engine / "config.json").write_text(json.dumps(ENGINE))
    one = ["--max-batch-size", 1, "--engine-dir", engine]
    init(repository, DEMO, "--kind", "vllm", "--name", "of-vllm")
    init(repository, DEMO, "--kind", "llmapi", "--name", "of-llmapi", code=3)
    init(repository, DEMO, "--kind", "tensorrt_llm", "--name", "whole", *one, code=3)


def stand_in(folder: Path) -> None:
    """Replaces NVIDIA's backend by the Python backend and keeps the rest."""
    config = folder / "config.pbtxt"
    text = config.read_text()
    for backend in NVIDIA_BACKENDS:
        text = text.replace(backend, 'backend: "python"')
    config.write_text(text)
    (folder / "1" / "model.py").write_text(PROGRAM)


def tensors(config: dict[str, Any], side: str) -> dict[str, Any]:
    """The core's description of each tensor, without unset members."""
    return {
        tensor["name"]: (
            tensor["data_type"],
            [int(size) for size in tensor["dims"]],
            tensor.get("optional", False),
            tensor.get("allow_ragged_batch", False),
            (tensor.get("reshape") or {}).get("shape"),
        )
        for tensor in config[side]
    }


@pytest.mark.slow  # six stub processes start and end
async def test_core_loads_the_repository(tmp_path: Path) -> None:
    """Every model loads with the intended tensors, the ensemble too."""

    repository = tmp_path / "r"
    write_all_kinds(repository, tmp_path / "engine")
    written = {path.name: read_config(path, None) for path in repository.iterdir()}
    for name, config in written.items():
        if config.get("platform") != "ensemble":
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
        whole = server.model_config("whole")["ensemble_scheduling"]["step"]
        for step, meant in zip(whole, written["whole"]["ensemble_scheduling"]["step"], strict=True):
            assert {key: step[key] for key in ("model_name", "input_map", "output_map")} == {
                key: meant[key] for key in ("model_name", "input_map", "output_map")
            }
    finally:
        await server.stop()


@pytest.mark.engine
def test_serve_hub_model_answers(tmp_path: Path) -> None:
    """One command serves a model from Hugging Face's cache under the given name."""

    hugging_face_cache.write(tmp_path / "hub", "acme/tiny", DEMO)
    question = [{"role": "user", "content": "What is Triton?"}]
    with GatewayProcess(
        "acme/tiny",
        tmp_path / "log",
        "--served-model-name=talk",
        "--engine-arg=max_model_len=512",
        environment={"HF_HUB_CACHE": str(tmp_path / "hub"), "XDG_CACHE_HOME": str(tmp_path)},
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
