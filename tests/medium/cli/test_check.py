"""What `check` reports of a model from its files alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.cli import cached_repository, main
from openai_frontend.cli.model_directory import find
from openai_frontend.errors import ModelUnavailable
from tests import mock_models
from tests.fast.lora.files import write_peft
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import ROOT

HERMES = "{% if tools %}<tool_call>{% endif %}"
VLLM = """
# comments count for nothing
name: "m" backend: 'inproc' "ess"
parameters { key: "engine" value: { string_value: "vllm" } }
instance_group [{ count: 1, kind: KIND_MODEL }]
"""


def report(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["check", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def vllm_model(repository: Path, template: str | None = HERMES, **arguments: Any) -> Path:
    """As an operator writes it: weights next to it, paths relative to the version's folder."""
    version = mock_models.write(repository, "m", config=VLLM, **arguments)
    tiny_tokenizer.write(version / "weights", chat_template=template)
    return version


def test_report_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model has a line for each field."""

    code = main(["check", str(ROOT / "model_repository" / "demo")])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line[:14].strip() for line in lines] == [
        "model", "versions", "serves", "contract", "streams", "refused", "tokenizer",
        "max model len", "chat template", "images", "tool calls", "reasoning", "constraints", "why",
        "will not work",
    ]  # fmt: skip
    assert lines[2].endswith("chat completions, completions")
    assert lines[3][15:].startswith("vllm. ")
    assert lines[8].endswith("the tokenizer's own (default)")
    assert "structural_tag" in lines[12]


def test_model_by_name_with_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings apply, and the report names them as the reason."""

    vllm_model(tmp_path, model="./weights")

    found = report(
        capsys, "m", "--model-repository", str(tmp_path), "--tool-call-parser", "m=mistral"
    )

    assert (found["tool_calls"], found["reasoning"]) == ("mistral", "none")
    assert found["why"] == [
        "The setting tool_call_parser is 'mistral'.",
        "The chat template contains '<tool_call>'.",
    ]
    assert found["tokenizer"] == str(tmp_path / "m" / "1" / "weights")
    assert found["problem"] is None


def test_environment_settings_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `serve`."""

    vllm_model(tmp_path, model="./weights")
    monkeypatch.setenv("OPENAI_FRONTEND_REASONING_PARSER", "deepseek_r1")

    found = report(capsys, str(tmp_path / "m"))

    assert found["reasoning"] == found["tool_calls"] == "hermes+deepseek_r1"


def test_limitations_do_not_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A template without tools is reported, and the exit code is 0."""

    vllm_model(tmp_path, model="./weights")

    found = report(
        capsys, str(tmp_path / "m"), "--chat-template", "llama3", "--tool-call-parser", "json"
    )

    assert found["chat_template"] == "llama3, built in, set by chat_template"
    assert found["will_not_work"] == [
        "The chat template does not show tools to the model, so it will not call any.",
        "Reasoning, if the model writes any, is not separated from the answer.",
    ]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "Chat: it needs a chat template."),
        ("{{ messages }}", "Tool calls are not recognised."),
    ],
)
def test_limitations_of_a_chat_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str | None, expected: str
) -> None:
    """The report names what the template lacks."""

    vllm_model(tmp_path, template, model="./weights")

    assert expected in report(capsys, str(tmp_path / "m"))["will_not_work"]


def test_folder_of_weights_is_checked_as_serve_would_serve_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is that of the repository that `init-repo` writes."""

    monkeypatch.setattr(cached_repository, "_check_names", lambda names: None)  # imports vLLM

    weights = tiny_tokenizer.write(tmp_path / "m", chat_template=HERMES)
    (weights / "config.json").write_text(
        '{"architectures": ["QwenForCausalLM"], "max_position_embeddings": 77}'
    )
    assert main(["init-repo", str(weights), "--repository", str(tmp_path / "r")]) == 0
    capsys.readouterr()

    bare = report(capsys, str(weights))
    assert bare == report(capsys, "m", "--model-repository", str(tmp_path / "r"))
    assert (bare["serves"], bare["max_model_len"]) == (["chat completions", "completions"], 77)
    assert "json" in bare["constraints"]

    named = report(
        capsys, str(weights), "--served-model-name=a", "--engine-arg=max_model_len=78", code=1
    )
    assert named["model"] == "a"
    assert named["problem"].startswith("model.json: max_model_len is 78, but the model's")


def test_mock_engine_has_no_constraints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tokenizer is reported, its constraints are empty."""

    mock_models.write_with_tokenizer(tmp_path, "m")

    found = report(capsys, "m", "--model-repository", str(tmp_path))

    assert (found["tool_calls"], found["constraints"]) == ("none", [])
    assert found["tokenizer"] == str(tmp_path / "m" / "1" / "./tokenizer")


def test_backend_that_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model is not servable, and the problem says what to do. The rest is reported too."""

    tokenizer = tiny_tokenizer.write(tmp_path / "tokenizer", chat_template=HERMES)
    mock_models.write(tmp_path / "r", "m", config='backend: "vllm"', model=str(tokenizer))

    found = report(capsys, "m", "--model-repository", str(tmp_path / "r"), code=1)

    assert found["serves"] == ["chat completions", "completions", "embeddings"]
    assert (found["tokenizer"], found["tool_calls"]) == (str(tokenizer), "hermes")
    assert "logit_bias" in found["refused"]
    assert found["problem"] == (
        "backend 'vllm' is not installed in /opt/tritonserver/backends; set backend: "
        '"inprocess" in config.pbtxt to run the model in this process (docs/migrating.md)'
    )


def test_backend_of_tensorrt_llms_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Owners of engines learn that newer images lack the backend."""

    text = "data_type: TYPE_STRING dims: [1]"
    tensors = f'input {{ name: "a" {text} }} output {{ name: "b" {text} }}'
    mock_models.write(tmp_path, "engine", config=f'backend: "tensorrtllm" {tensors}')

    found = report(capsys, "engine", "--model-repository", str(tmp_path), code=1)

    assert "NVIDIA removed it in July 2026" in found["problem"]


@pytest.mark.parametrize(
    ("config", "file", "backend"),
    [
        ('backend: "onnxruntime"', "other", "onnxruntime"),
        ('platform: "onnxruntime_onnx"', "model.onnx", "onnxruntime"),
        ("", "model.onnx", "onnxruntime"),
        ("", "model.plan", "tensorrt"),
        ("", "model.pt", "pytorch"),
    ],
)
def test_backend_that_the_core_chooses_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, file: str, backend: str
) -> None:
    """By the config's platform or by the model's file. An ensemble needs those of its steps."""

    text = "data_type: TYPE_STRING dims: [1]"
    tensors = f'input {{ name: "a" {text} }} output {{ name: "b" {text} }}'
    version = mock_models.write(tmp_path, "inner", config=f"{config} {tensors}")
    (version / file).write_text("")
    steps = 'step { model_name: "inner" model_version: -1 }'
    ensemble = f'platform: "ensemble" {tensors} ensemble_scheduling {{ {steps} }}'
    mock_models.write(tmp_path, "whole", config=ensemble)

    for model in ("inner", "whole"):
        found = report(capsys, model, "--model-repository", str(tmp_path), code=1)
        assert f"backend '{backend}' is not installed in" in found["problem"]

    (tmp_path / "backends" / backend).mkdir(parents=True)
    options = ["--model-repository", str(tmp_path), "--backend-directory", f"{tmp_path}/backends"]
    assert report(capsys, "inner", *options)["problem"] is None


def test_derived_and_refused_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report has derived fields, refused request fields, and how the model streams."""

    text = "data_type: TYPE_STRING dims: [1]"
    config = f'backend: "python" input {{ name: "IN" {text} }} output {{ name: "OUT" {text} }}'
    version = mock_models.write(tmp_path, "m", config=config)
    (version / "model.py").write_text("")
    (tmp_path / "m" / "openai_frontend.yaml").write_text(
        "{contract: python, tensors: {text_input: IN, text_output: OUT}}"
    )

    found = report(capsys, "m", "--model-repository", str(tmp_path))

    assert found["contract"] == "python. The model's options set it."
    assert found["streams"] == "as one chunk at the end: the model sends one response"
    assert any("first stop string" in sentence for sentence in found["derived"])
    assert {"temperature", "response_format"} <= set(found["refused"])
    assert "stop" not in found["refused"]


def test_tensors_without_a_matching_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KServe's protocol serves the model, unless it is disabled."""

    config = 'backend: "python" output [{ name: "x" data_type: TYPE_FP32 dims: [1] }]'
    version = mock_models.write(tmp_path, "m", config=config)
    (version / "model.py").write_text("")

    found = report(capsys, "m", "--model-repository", str(tmp_path))

    assert (found["serves"], found["problem"]) == (["/v2 only"], None)
    assert found["contract"] == "none: no supported endpoint matches its inputs and outputs"
    monkeypatch.setenv("OPENAI_FRONTEND_ENABLE_KSERVE", "false")
    found = report(capsys, "m", "--model-repository", str(tmp_path), code=1)
    assert found["problem"].endswith("matches its inputs and outputs, and /v2 is disabled")


def test_model_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It serves completions, but no chat."""

    mock_models.write(tmp_path, "m", config='backend: "vllm"')

    found = report(capsys, "m", "--model-repository", str(tmp_path), code=1)

    assert found["serves"] == ["completions", "embeddings"]
    assert found["will_not_work"][0] == ("Chat and tools: they need a tokenizer.")


def test_endpoints_of_a_hub_model_are_unknown_before_the_download(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be an embedding model, so the report says neither yes nor no."""

    mock_models.write(tmp_path, "m", config=VLLM, model="org/m")

    found = report(capsys, str(tmp_path / "m"))

    assert (found["problem"], found["tokenizer"]) == (None, "org/m, not downloaded yet")
    unknown = "unknown until its files are downloaded"
    assert (found["serves"], found["tool_calls"], found["reasoning"]) == (
        [unknown], unknown, unknown,
    )  # fmt: skip
    assert (found["streams"], found["constraints"], found["will_not_work"]) == ("", None, [])


def test_encoder_serves_embeddings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BertModel does not generate text."""

    version = vllm_model(tmp_path, model="./weights")
    (version / "weights" / "config.json").write_text('{"architectures": ["BertModel"]}')

    found = report(capsys, str(tmp_path / "m"))

    assert (found["serves"], found["streams"]) == (["embeddings", "pooling"], "")
    assert (found["will_not_work"], found["tool_calls"]) == ([], "")
    assert found["contract"] == (
        "embeddings. It takes embedding and score requests as vLLM's backends do."
    )


def test_lora_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters have the names that requests use; an unusable adapter has a reason."""

    adapters = tmp_path / "adapters"
    write_peft(adapters / "sound")
    write_peft(adapters / "large", rank=32)
    vllm_model(tmp_path / "r", model="./weights", enable_lora=True)
    (tmp_path / "r" / "m" / "openai_frontend.yaml").write_text(f"adapter_folder: {adapters}")

    found = report(capsys, str(tmp_path / "r" / "m"))

    assert found["adapters"] == ["m:sound"]
    assert found["will_not_work"][-1].startswith("LoRA adapter 'large': ")


def test_lora_adapters_without_enable_lora(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report says once that they are not served, and how to enable them."""

    write_peft(tmp_path / "adapter")
    vllm_model(tmp_path / "r", model="./weights")
    (tmp_path / "r" / "m" / "openai_frontend.yaml").write_text(
        f"adapters: {{a: {tmp_path}/adapter}}"
    )

    code = main(["check", str(tmp_path / "r" / "m")])

    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert "LoRA adapter 'a': the model does not support LoRA adapters" in said.out


def test_model_options_override_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """openai_frontend.yaml has priority over other files."""

    tokenizer = tiny_tokenizer.write(tmp_path / "tokenizer", chat_template=HERMES)
    mock_models.write(tmp_path / "r", "m", config='backend: "vllm"')
    (tmp_path / "r" / "m" / "openai_frontend.yaml").write_text(
        f"{{aliases: [org/m], tokenizer: {tokenizer}, max_model_len: 7, chat_template: llama3}}"
    )

    # Its backend is not installed
    found = report(capsys, "m", "--model-repository", str(tmp_path / "r"), code=1)

    assert (found["aliases"], found["max_model_len"]) == (["org/m"], 7)
    assert found["tokenizer"] == str(tokenizer)
    assert found["chat_template"] == "llama3, built in, set by chat_template"


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 2 } }", [2, 10]),
        ("version_policy { all { } }", [1, 2, 10]),
        ("version_policy { specific { versions: [1, 7] } }", [1]),
    ],
)
def test_versions_that_triton_would_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, versions: list[int]
) -> None:
    """The report describes the latest one."""

    version = vllm_model(tmp_path, model="../weights")
    (version / "weights").rename(tmp_path / "m" / "weights")
    for number in ("2", "10"):
        shutil.copytree(version, tmp_path / "m" / number)
    with (tmp_path / "m" / "config.pbtxt").open("a") as config:
        config.write(policy)

    found = report(capsys, str(tmp_path / "m"))

    assert found["versions"] == versions
    assert found["tokenizer"] == str(tmp_path / "m" / str(versions[-1]) / "../weights")


def test_unknown_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A similar name is suggested; the exit code is 1."""

    mock_models.write(tmp_path, "llama")

    code = main(["check", "lama", "--model-repository", str(tmp_path)])

    assert code == 1
    assert capsys.readouterr().out == (
        "model          lama\nproblem        no model 'lama'; did you mean 'llama'?\n"
    )


PROBLEMS: list[tuple[dict[str, str], str]] = [
    ({"config.pbtxt": "parameters { key"}, "config.pbtxt: line 1, column 17: Expected"),
    ({"config.pbtxt": "\nmax_batch: 1"}, "config.pbtxt: line 2, column 1: Message type"),
    ({"config.pbtxt": "max_batch_size: x"}, "line 1, column 17: Couldn't parse integer: x"),
    ({"config.pbtxt": 'name: "n"'}, "config.pbtxt: name is 'n', but the folder is 'm'"),
    ({"config.pbtxt": 'backend: "python"'}, "/m/1/model.py is missing"),
    (
        {"config.pbtxt": VLLM.replace('"vllm"', '"vlm"')},
        "engine: 'vlm': expected one of vllm, mock",
    ),
    (
        {"config.pbtxt": VLLM.replace('"vllm"', '"absent_x:Y"')},
        "config.pbtxt: parameters: engine: No module named 'absent_x'",
    ),
    ({"openai_frontend.yaml": "alias: x"}, "unknown option 'alias'; did you mean 'aliases'?"),
    ({"1/model.json": "{"}, "model.json: Expecting property name"),
    ({"1/model.json": "[]"}, "model.json: not a JSON object"),
    ({"1/model.json": '{"model": "./nothing"}'}, "/nothing does not exist"),
    ({"1/model.json": '{"model": "/nothing"}'}, "/nothing does not exist"),
    ({"1/weights/tokenizer.json": "{"}, "its tokenizer cannot be loaded"),
    ({"1/weights/config.json": "{"}, "cannot read its config.json"),
    (
        {
            "1/model.json": '{"model": "./weights", "max_model_len": 100000}',
            "1/weights/config.json": '{"max_position_embeddings": 2048}',
        },
        "max_model_len is 100000, but the model's",
    ),
    *(
        (
            {
                "config.pbtxt": 'name: "m"\nbackend: "python"\n',
                "1/model.yaml": f"triton_config: {{max_batch_size: {size}}}\n",
            },
            "model.yaml: max_batch_size is not a number",
        )
        for size in ("many", "[1]")
    ),
]


@pytest.mark.parametrize(("files", "problem"), PROBLEMS)
def test_problems_that_prevent_serving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], problem: str
) -> None:
    """The report has the problem, and the exit code is 1, without starting the model."""

    vllm_model(tmp_path, model="./weights")
    for file, content in files.items():
        (tmp_path / "m" / file).write_text(content)

    assert problem in report(capsys, str(tmp_path / "m"), code=1)["problem"]


def test_vllm_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problem names the extra to install."""

    vllm_model(tmp_path, model="./weights")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    told = report(capsys, str(tmp_path / "m"), code=1)
    assert told["problem"].startswith("vLLM is not installed. Install the extra 'vllm'")


def test_template_with_a_syntax_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The template is the model's own, so the settings' check does not see it."""

    vllm_model(tmp_path, "{% if %}", model="./weights")

    assert "line 1 of the chat template" in report(capsys, str(tmp_path / "m"), code=1)["problem"]


def test_invalid_setting_has_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the same as for `serve`."""

    assert main(["check", "demo", "--tool-call-parser", "hermess"]) == 2
    assert "did you mean 'hermes'" in capsys.readouterr().err


def test_tokenizer_argument_has_priority_over_model(tmp_path: Path) -> None:
    """vLLM uses `tokenizer`, else `model`, of the latest version."""

    version = vllm_model(tmp_path, model="./weights", tokenizer="./other")
    (version / "other").mkdir()
    assert find("m", [tmp_path], {}).facts().tokenizer == str(version / "./other")

    newer = tmp_path / "m" / "10"
    newer.mkdir()
    (newer / "model.json").write_text('{"model": "org/on-a-hub"}')
    assert find("m", [tmp_path], {}).facts().tokenizer == "org/on-a-hub"


def test_name_cannot_leave_the_repository(tmp_path: Path) -> None:
    """A folder without a model is not found."""

    (tmp_path / "empty").mkdir()

    with pytest.raises(ModelUnavailable, match=r"'empty': .*/empty has neither a config"):
        find("empty", [tmp_path], {})


def test_images_are_reported_with_their_placeholder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by rendering; a model whose template writes none takes no images."""
    mock_models.write_with_images(tmp_path, "sees", images_per_prompt=3)
    mock_models.write_with_tokenizer(tmp_path, "blind", images_per_prompt=3)
    mock_models.write_with_tokenizer(tmp_path, "text")

    assert main(["check", "--json", f"--model-repository={tmp_path}"]) == 0

    reports = {each["model"]: each["images"] for each in json.loads(capsys.readouterr().out)}
    assert reports == {
        "sees": "at most 3 per request; the chat template writes '<|vision|><image>'",
        "blind": "none: the chat template writes nothing for an image",
        "text": "none",
    }


def test_hosts_of_media_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For models that take any, if the setting has hosts."""
    mock_models.write_with_images(tmp_path, "sees")
    mock_models.write_with_tokenizer(tmp_path, "text")
    repository = f"--model-repository={tmp_path}"
    hosts = ["--allowed-media-domains=a.example", "--allowed-media-domains=*.b.example"]

    assert report(capsys, "sees", repository)["media_urls"] == ""
    assert report(capsys, "text", repository, *hosts)["media_urls"] == ""
    found = [each["media_urls"] for each in report(capsys, repository, *hosts)]
    told = "https from a.example, *.b.example (allowed_media_domains)"
    assert report(capsys, "sees", repository, *hosts)["media_urls"] == told
    assert found == [told, ""]


def test_audio_of_transcription_models_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the files of Whisper models, or the settings of a mock."""
    mock_models.write(tmp_path, "hears", audio_window_s=30.0)
    mock_models.write(tmp_path, "deaf")
    english = mock_models.write(tmp_path, "m", config=VLLM, model="./weights") / "weights"
    tiny_tokenizer.write(english)
    for name, content in (
        ("config", {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}),
        ("preprocessor_config", {"sampling_rate": 8_000, "chunk_length": 10}),
        ("generation_config", {"is_multilingual": False, "lang_to_id": {"<|en|>": 3}}),
    ):
        (english / f"{name}.json").write_text(json.dumps(content))
    demo = ROOT / "model_repository" / "demo-speech"

    assert main(["check", "--json", f"--model-repository={tmp_path}"]) == 0
    reports = {each["model"]: each["audio"] for each in json.loads(capsys.readouterr().out)}
    main(["check", "--json", str(demo)])
    reported = json.loads(capsys.readouterr().out)

    both = "languages de, en; writes times; translates into English"
    assert reports == {
        "hears": f"at most 30 s at 16000 Hz per request to the engine; {both}",
        "deaf": "",
        "m": "at most 10 s at 8000 Hz per request to the engine; languages en",
    }
    assert reported["audio"] == f"at most 4 s at 16000 Hz per request to the engine; {both}"


def test_an_engine_describes_its_models_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` asks the engine's class and loads nothing."""
    mock_models.write(tmp_path, "embeds", tasks=["embed"])

    assert main(["check", "--json", f"--model-repository={tmp_path}"]) == 0
    [report] = json.loads(capsys.readouterr().out)

    assert report["serves"] == ["embeddings"]
