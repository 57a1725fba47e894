"""Facts from the files of other backends' models."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.media.modalities import ImageSupport
from openai_frontend.model_facts import OTHER_BACKEND
from openai_frontend.models.model_files import (
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
        replace(OTHER_BACKEND, tokenizer=str(tmp_path), max_model_len=99),
        replace(OTHER_BACKEND, tokenizer=str(tmp_path), max_model_len=5),
        replace(OTHER_BACKEND, tokenizer="org/x"),
        OTHER_BACKEND,
    ]


def test_tensorrt_llm_llmapi(tmp_path: Path) -> None:
    """model.yaml holds the engine's arguments."""

    (tmp_path / "model.yaml").write_text("model: org/x\nmax_seq_len: 7\ntriton_config: {}")
    source = ModelSource(config={"backend": "python"}, folder=tmp_path)
    assert read_facts(source, no_parts) == replace(
        OTHER_BACKEND, tokenizer="org/x", max_model_len=7, logits_processors=()
    )


def test_llmapi_names_its_logits_processors(tmp_path: Path) -> None:
    """The keys of a mapping in model.yaml; the values name code."""

    (tmp_path / "model.yaml").write_text(
        "model: org/x\nlogits_post_processors: {json_only: 'masks:JSON', dates: 'masks:DATES'}\n"
    )
    source = ModelSource(config={"backend": "python"}, folder=tmp_path)
    assert read_facts(source, no_parts).logits_processors == ("json_only", "dates")


ENSEMBLE = {"ensemble_scheduling": {"step": [{"model_name": "before"}, {"model_name": "engine"}]}}
BLS = parameters(tensorrt_llm_model_name="engine")
ENCODERS = parameters(multimodal_encoders_name="multimodal_encoders")


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
    assert found == replace(OTHER_BACKEND, tokenizer="/tok", max_model_len=11)


@pytest.mark.parametrize(("member", "sees"), [("vision_config", True), ("text_config", False)])
def test_nvidias_vllm_backend_sees_with_a_vision_model(
    tmp_path: Path, member: str, sees: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({member: {}}))
    (tmp_path / "model.json").write_text(json.dumps({"model": str(tmp_path)}))
    source = ModelSource(config={"backend": "vllm"}, folder=tmp_path)

    assert (read_facts(source, no_parts).images is not None) is sees


@pytest.mark.parametrize(
    ("said", "sees"),
    [("multimodal: True", True), ("multimodal: 1", False), ("decoupled: 1", False)],
)
def test_llmapi_sees_only_if_its_settings_say_so(tmp_path: Path, said: str, sees: bool) -> None:
    """Otherwise the model drops images without an error."""

    (tmp_path / "model.yaml").write_text(f"model: org/x\ntriton_config:\n  {said}\n")
    source = ModelSource(config={"backend": "python"}, folder=tmp_path)
    expected = ImageSupport(takes_question=True) if sees else None
    assert read_facts(source, no_parts).images == expected


VISION = {
    "mllama": ImageSupport(),
    "qwen2_vl": ImageSupport(max_per_request=1, takes_question=True),
    "vila": None,  # its preprocessing takes no URLs
}


@pytest.mark.parametrize("kind", VISION)
@pytest.mark.parametrize(
    ("config", "sees"),
    [
        (ENSEMBLE, True),
        ({"parameters": {**BLS["parameters"], **ENCODERS["parameters"]}}, True),
        (BLS, False),  # it calls no encoder, so it drops images
    ],
    ids=["ensemble", "bls", "bls without encoders"],
)
def test_tensorrt_llm_pipeline_sees_by_the_kind_of_its_vision_model(
    tmp_path: Path, kind: str, config: Mapping[str, Any], sees: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"builder_config": {"model_type": kind}}))
    found = read_facts(
        ModelSource(config=config, folder=None),
        lambda _: ModelSource(config=parameters(multimodal_model_path=str(tmp_path)), folder=None),
    )
    assert found.images == (VISION[kind] if sees else None)


def test_placeholders_are_ignored() -> None:
    """As in NVIDIA's template repositories."""

    config = parameters(tokenizer_dir="${tokenizer_dir}", gpt_model_path="${engine_dir}")
    assert read_facts(ModelSource(config=config, folder=None), no_parts) == OTHER_BACKEND


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
