"""What the files of other backends' models say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.model_files import (
    ModelFacts,
    ModelSource,
    composing_models,
    model_folder,
    read_facts,
)


def no_parts(name: str) -> None:
    return None


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}


def test_nvidias_vllm_backend(tmp_path: Path) -> None:
    """`tokenizer` goes before `model`, and the length that is asked for before the model's own."""

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
        ModelFacts(tokenizer=tmp_path, max_model_len=99),
        ModelFacts(tokenizer=tmp_path, max_model_len=5),
        ModelFacts(tokenizer=Path("org/x")),
        ModelFacts(),
    ]


def test_tensorrts_llm_api(tmp_path: Path) -> None:
    """Its model.yaml holds what the engine is made with."""

    (tmp_path / "model.yaml").write_text("model: org/x\nmax_seq_len: 7\ntriton_config: {}")
    source = ModelSource(config={"backend": "python"}, folder=tmp_path)
    assert read_facts(source, no_parts) == ModelFacts(tokenizer=Path("org/x"), max_model_len=7)


ENSEMBLE = {"ensemble_scheduling": {"step": [{"model_name": "before"}, {"model_name": "engine"}]}}
BLS = parameters(tensorrt_llm_model_name="engine")


@pytest.mark.parametrize(
    ("config", "before"), [(ENSEMBLE, "before"), (BLS, "preprocessing")], ids=["ensemble", "bls"]
)
def test_a_pipeline_of_tensorrt_llm(tmp_path: Path, config: Mapping[str, Any], before: str) -> None:
    """The tokenizer is that of the part before, the length that of the engine."""

    (tmp_path / "config.json").write_text('{"build_config": {"max_seq_len": 11}}')
    configs = {
        before: parameters(tokenizer_dir="/tok"),
        "engine": parameters(gpt_model_path=str(tmp_path)),
    }
    found = read_facts(
        ModelSource(config=config, folder=None),
        lambda name: ModelSource(config=configs.get(name, {}), folder=None),
    )
    assert found == ModelFacts(tokenizer=Path("/tok"), max_model_len=11)


def test_a_template_that_was_not_filled_says_nothing() -> None:
    """As NVIDIA's repository holds them."""

    config = parameters(tokenizer_dir="${tokenizer_dir}", gpt_model_path="${engine_dir}")
    assert read_facts(ModelSource(config=config, folder=None), no_parts) == ModelFacts()


def test_the_parts_of_a_model() -> None:
    """Each once; a model that calls nobody has none."""

    assert composing_models(ENSEMBLE) == ["before", "engine"]
    assert composing_models(BLS) == ["preprocessing", "postprocessing", "engine"]
    assert composing_models({"backend": "python"}) == []


@pytest.mark.parametrize(("name", "text"), [("model.json", "{"), ("model.json", "[]")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    """The backend would say the same, later."""

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
def test_a_folder_that_cannot_be_looked_into_is_named(
    tmp_path: Path, config: Mapping[str, Any]
) -> None:
    """It fails its model, with the reason."""

    (tmp_path / "model.json").write_text(json.dumps({"model": f"/{LONG}"}))
    with pytest.raises(ModelUnavailable, match=rf"/{LONG}/config.json: .*too long"):
        read_facts(ModelSource(config=config, folder=tmp_path), no_parts)


def test_the_folder_of_a_model(tmp_path: Path) -> None:
    """In the first repository that has it."""

    (tmp_path / "b" / "m").mkdir(parents=True)
    repositories = [tmp_path / "a", tmp_path / "b"]
    assert model_folder("m", repositories) == tmp_path / "b" / "m"
    assert model_folder("x", repositories) is None
