"""What `init-repo` writes: NVIDIA's tensors, the user's options, and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_frontend.cli import main, pbtxt
from openai_frontend.cli.init_repo import presets
from openai_frontend.cli.init_repo.options import parse_options
from tests.gateway_process import ROOT

DEMO = ROOT / "model_repository" / "demo" / "1" / "weights"
FACTS = json.loads((ROOT / "tests" / "data" / "nvidia_tensors.json").read_text())


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the layout of all_models in NVIDIA's image."""
    for name in (
        "llmapi/tensorrt_llm/1/model.py",
        "llmapi/tensorrt_llm/1/helpers.py",
    ):
        path = tmp_path / "all_models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path / "all_models"


def init(repository: Path, model: object, *options: object, code: int = 0) -> Path:
    """Runs the command and returns the repository."""
    arguments = ["init-repo", str(model), "--repository", str(repository), *map(str, options)]
    assert main(arguments) == code
    return repository


def config(folder: Path) -> dict[str, Any]:
    return pbtxt.read((folder / "config.pbtxt").read_text())


def parameters(folder: Path) -> dict[str, str]:
    entries = config(folder)["parameters"]
    return {key: entry["string_value"] for key, entry in entries.items()}


def options(folder: Path) -> Any:
    return yaml.safe_load((folder / "openai_frontend.yaml").read_text())


def by_name(tensors: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        tensor["name"]: {key: value for key, value in tensor.items() if key != "name"}
        for tensor in tensors
    }


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("kind", ["vllm", "llmapi"])
def test_tensors_of_vllm_and_llmapi_equal_nvidias(tmp_path: Path, kind: str, side: str) -> None:
    """Names, types and shapes are equal."""

    [made] = presets.models(
        parse_options({"model": str(DEMO), "kind": kind, "repository": tmp_path})
    )
    assert by_name(made.config[side]) == FACTS[kind][side]


def test_repository_for_in_process_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files, the next command, and the report of `check`."""

    repository = init(
        tmp_path / "r", DEMO, "--name", "tiny", "--max-model-len", 512, "--dtype", "float32"
    )

    folder = repository / "tiny"
    assert json.loads((folder / "1" / "model.json").read_text()) == {
        "model": str(DEMO),
        "tokenizer": str(DEMO),
        "tensor_parallel_size": 1,
        "dtype": "float32",
        "max_model_len": 512,
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"wrote {folder}/config.pbtxt", f"wrote {folder}/1/model.json"]
    assert f"openai-frontend serve --model-repository {repository}" in lines
    assert f"tokenizer      {DEMO}" in lines


def test_hub_model_gets_its_full_name_as_alias(tmp_path: Path) -> None:
    """The hub is not contacted; requests may use ORG/MODEL."""

    repository = init(tmp_path, "org/Some-Model", "--kind", "vllm", "--tensor-parallel-size", 2)

    folder = repository / "Some-Model"
    assert json.loads((folder / "1" / "model.json").read_text()) == {
        "model": "org/Some-Model",
        "tokenizer": "org/Some-Model",
        "tensor_parallel_size": 2,
        "disable_log_stats": False,
    }
    assert options(folder) == {"aliases": ["org/Some-Model"], "contract": "vllm"}


def test_repository_for_the_llm_api(tmp_path: Path, programs: Path) -> None:
    """NVIDIA's model.py reads two fields of the config from model.yaml."""

    repository = init(
        tmp_path / "r",
        "org/m",
        *("--kind", "llmapi", "--nvidia-models", programs, "--instances", 2),
        *("--tensor-parallel-size", 2, "--max-model-len", 100, "--gpu-memory-utilization", 0.5),
    )

    folder = repository / "m"
    assert yaml.safe_load((folder / "1" / "model.yaml").read_text()) == {
        "model": "org/m",
        "tokenizer": "org/m",
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_seq_len": 100,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5},
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }
    assert parameters(folder) == {"gpu_device_ids": "0,1;2,3"}
    assert (folder / "1" / "helpers.py").read_text() == "# llmapi/tensorrt_llm/1/helpers.py\n"


def lora(folder: Path, name: str, rank: int) -> Path:
    """An adapter in PEFT's layout, as far as the command reads it."""
    path = folder / name
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return path


def test_lora_adapters_of_vllm(tmp_path: Path) -> None:
    """multi_lora.json lists them, and max_lora_rank fits the largest."""

    one, two = lora(tmp_path, "one", 8), lora(tmp_path, "two", 20)
    repository = init(
        tmp_path / "r", "org/m", "--kind", "vllm", "--lora", f"a={one}", "--lora", f"b={two}"
    )

    version = repository / "m" / "1"
    assert json.loads((version / "multi_lora.json").read_text()) == {"a": str(one), "b": str(two)}
    arguments = json.loads((version / "model.json").read_text())
    assert (arguments["enable_lora"], arguments["max_loras"]) == (True, 2)
    assert arguments["max_lora_rank"] == 32


def test_lora_adapters_of_the_llm_api(tmp_path: Path, programs: Path) -> None:
    """The engine has slots for them, and the gateway knows their folders."""

    one = lora(tmp_path, "one", 8)
    repository = init(
        tmp_path / "r",
        *("org/m", "--kind", "llmapi", "--nvidia-models", programs, "--lora", f"a={one}"),
    )

    said = yaml.safe_load((repository / "m" / "1" / "model.yaml").read_text())
    assert said["lora_config"]["max_lora_rank"] == 8
    assert options(repository / "m")["adapters"] == {"a": str(one)}
