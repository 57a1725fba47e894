"""Facts from the files of other backends' models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.model_files import (
    ModelFileFacts,
    ModelSource,
    composing_models,
    fingerprint,
    model_folder,
    read_facts,
)


def no_parts(name: str) -> None:
    return None


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}


def test_nvidias_vllm_backend(tmp_path: Path) -> None:
    """`tokenizer` overrides `model`, and the configured length the model's own."""

    (tmp_path / "config.json").write_text('{"max_position_embeddings": 99}')
    source = ModelSource(config={"backend": "vllm"}, folder=tmp_path)
    found = []
    for arguments in (
        {"model": str(tmp_path)},
        {"model": "org/x", "tokenizer": str(tmp_path), "max_model_len": 5},
        {"model": "org/x"},
        {},
    ):
        (tmp_path / "model.json").write_text(json.dumps(arguments))
        found.append(read_facts(source, no_parts))
    assert found == [
        ModelFileFacts(tokenizer=tmp_path, max_model_len=99),
        ModelFileFacts(tokenizer=tmp_path, max_model_len=5),
        ModelFileFacts(tokenizer=Path("org/x")),
        ModelFileFacts(),
    ]


def test_tensorrt_llm_llmapi(tmp_path: Path) -> None:
    """model.yaml holds the engine's arguments."""

    (tmp_path / "model.yaml").write_text("model: org/x\nmax_seq_len: 7\ntriton_config: {}")
    source = ModelSource(config={"backend": "python"}, folder=tmp_path)
    assert read_facts(source, no_parts) == ModelFileFacts(tokenizer=Path("org/x"), max_model_len=7)


ENSEMBLE = {"ensemble_scheduling": {"step": [{"model_name": "before"}, {"model_name": "engine"}]}}
BLS = parameters(tensorrt_llm_model_name="engine")


@pytest.mark.parametrize(
    ("config", "before"), [(ENSEMBLE, "before"), (BLS, "preprocessing")], ids=["ensemble", "bls"]
)
def test_tensorrt_llm_pipeline(tmp_path: Path, config: Mapping[str, Any], before: str) -> None:
    """The tokenizer is that of preprocessing, the length that of the engine."""

    (tmp_path / "config.json").write_text('{"build_config": {"max_seq_len": 11}}')
    configs = {
        before: parameters(tokenizer_dir="/tok"),
        "engine": parameters(gpt_model_path=str(tmp_path)),
    }
    found = read_facts(
        ModelSource(config=config, folder=None),
        lambda name: ModelSource(config=configs.get(name, {}), folder=None),
    )
    assert found == ModelFileFacts(tokenizer=Path("/tok"), max_model_len=11)


def test_placeholders_are_ignored() -> None:
    """As in NVIDIA's template repositories."""

    config = parameters(tokenizer_dir="${tokenizer_dir}", gpt_model_path="${engine_dir}")
    assert read_facts(ModelSource(config=config, folder=None), no_parts) == ModelFileFacts()


def test_composing_models() -> None:
    """Each once; none for a model that calls no other."""

    assert composing_models(ENSEMBLE) == ["before", "engine"]
    assert composing_models(BLS) == ["preprocessing", "postprocessing", "engine"]
    assert composing_models({"backend": "python"}) == []


@pytest.mark.parametrize(("name", "text"), [("model.json", "{"), ("model.json", "[]")])
def test_unreadable_file(tmp_path: Path, name: str, text: str) -> None:
    """The error names it, earlier than the backend would."""

    (tmp_path / name).write_text(text)
    source = ModelSource(config={"backend": "vllm"}, folder=tmp_path)
    with pytest.raises(ModelUnavailable, match=str(tmp_path / name)):
        read_facts(source, no_parts)


LONG = "x" * 300  # no name of a file: the system refuses to look, as where it may not


@pytest.mark.parametrize(
    "config",
    [parameters(gpt_model_path=f"/{LONG}"), {"backend": "vllm"}],
    ids=["an engine's", "a model's"],
)
def test_folder_without_permission(tmp_path: Path, config: Mapping[str, Any]) -> None:
    """The model fails with the reason."""

    (tmp_path / "model.json").write_text(json.dumps({"model": f"/{LONG}"}))
    with pytest.raises(ModelUnavailable, match=rf"/{LONG}/config.json: .*too long"):
        read_facts(ModelSource(config=config, folder=tmp_path), no_parts)


def test_model_folder(tmp_path: Path) -> None:
    """The first repository that contains the model wins."""

    (tmp_path / "b" / "m").mkdir(parents=True)
    repositories = [tmp_path / "a", tmp_path / "b"]
    assert model_folder("m", repositories) == tmp_path / "b" / "m"
    assert model_folder("x", repositories) is None


def test_fingerprint(tmp_path: Path) -> None:
    """Equal for copies of a model, and another one for a changed config or weight. Python's cache
    does not count.
    """
    for name in ("here", "there"):
        (tmp_path / name / "weights").mkdir(parents=True)
        (tmp_path / name / "weights" / "model.safetensors").write_bytes(b"abc" * 1000)
    cache = tmp_path / "there" / "__pycache__"
    cache.mkdir()
    (cache / "model.pyc").write_bytes(b"x")
    here, there = tmp_path / "here", tmp_path / "there"
    before = fingerprint(ModelSource(config={"name": "m"}, folder=here))

    assert fingerprint(ModelSource(config={"name": "m"}, folder=there)) == before
    assert fingerprint(ModelSource(config={"name": "n"}, folder=here)) != before
    assert fingerprint(ModelSource(config={"name": "m"}, folder=None)) != before
    (here / "weights" / "model.safetensors").write_bytes(b"abd" * 1000)
    assert fingerprint(ModelSource(config={"name": "m"}, folder=here)) != before
