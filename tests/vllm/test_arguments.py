"""`model.json` becomes vLLM's engine arguments."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.cli import cached_repository, main
from openai_frontend.cli.check import load_checks
from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.vllm import arguments, capabilities, versions
from tests import hugging_face_cache, mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import ROOT
from tests.vllm.conftest import needs_step_loop

pytestmark = pytest.mark.engine

DEMO = ROOT / "model_repository" / "demo"


def read(**values: Any) -> Any:
    model = ModelSpec(
        name="demo",
        version=1,
        folder=DEMO,
        parameters={},
        arguments={"model": "./weights", **values},
    )
    return arguments.engine_arguments(model)


@pytest.mark.parametrize(
    ("value", "meant"), [("true", True), ("false", False), (True, True), (False, False)]
)
def test_words_are_accepted_as_switches(value: object, meant: bool) -> None:
    """NVIDIA's LoRA tutorial writes `"enable_lora": "true"`; the word "false" means false."""
    assert read(enable_lora=value).enable_lora is meant


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_missing_absolute_path_is_named_in_the_error(name: str) -> None:
    """vLLM would read the path as a model name on the Hugging Face Hub."""
    with pytest.raises(ValueError, match=rf"model\.json: {name}: /nope does not exist$"):
        read(**{name: "/nope"})


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ({}, "tcp://[::ffff:127.0.0.1]:5557"),
        ({"endpoint": "tcp://*:7000"}, "tcp://*:7000"),
    ],
)
def test_kv_events_are_published_on_loopback(given: dict[str, str], endpoint: str) -> None:
    """Unless model.json says otherwise: vLLM's default is every address, without authentication."""
    config = read(kv_events_config={"enable_kv_cache_events": True, **given}).kv_events_config

    assert config["endpoint"] == endpoint


def test_config_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.json: kv_events_config: expected an object"):
        read(kv_events_config="zmq")


@pytest.mark.parametrize(
    ("config", "open_to_all"),
    [
        ({}, []),
        ({"endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": "ipc:///run/kv"}, []),
        ({"endpoint": "tcp://[::ffff:127.0.0.1]:5557"}, []),
        ({"endpoint": "tcp://[::1]:5557", "replay_endpoint": "tcp://localhost:1"}, []),
        (
            {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://10.0.0.1:5558"},
            ["endpoint", "replay_endpoint"],
        ),
        ({"endpoint": "tcp://127.example.com:5557"}, ["endpoint"]),
    ],
)
def test_kv_events_that_other_machines_can_read(
    config: dict[str, str], open_to_all: list[str]
) -> None:
    """Each such endpoint has a warning that names it."""
    warnings = arguments.open_endpoints({"kv_events_config": config})

    assert [warning.split()[6] for warning in warnings] == open_to_all


def test_check_warns_of_open_kv_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model can be served all the same."""
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    events = {"endpoint": "tcp://*:5557"}
    version = mock_models.write(tmp_path, "m", config=config, model="./w", kv_events_config=events)
    tiny_tokenizer.write(version / "w")

    main(["check", "m", "--model-repository", str(tmp_path), "--json"])
    limitations = json.loads(capsys.readouterr().out)["limitations"]
    begin = "model.json: kv_events_config: other machines can reach endpoint tcp"
    assert [each.startswith(begin) for each in limitations].count(True) == 1


def test_check_reports_a_model_that_does_not_fit_the_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says what to do; with role both, the model is servable."""
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    version = mock_models.write(tmp_path, "m", config=config, model="./w")
    tiny_tokenizer.write(version / "w")
    decode = tmp_path / "decode.yaml"
    decode.write_text("{role: decode, prefill_peers: ['http://127.0.0.1:1'], transfer_key: k}")

    def problem(*options: str) -> Any:
        main(["check", "m", "--model-repository", str(tmp_path), "--json", *options])
        return json.loads(capsys.readouterr().out)["problem"]

    assert problem() is None
    assert problem("--config", str(decode)).startswith(
        "role decode needs kv_transfer_config in model.json"
    )


def test_words_of_other_arguments_stay_text() -> None:
    """Only switches convert words to booleans."""
    assert read(quantization="true").quantization == "true"


def test_model_folder_is_found() -> None:
    """It is next to model.json, whatever the working directory."""
    assert Path(read().model) == DEMO / "1" / "weights"


def test_vllm_logs_in_the_gateways_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's processes read the gateway's logging configuration, unless the user set vLLM's own."""
    if not versions.installed().has(capabilities.LOGGING):
        pytest.skip(f"vLLM {versions.installed().version} has no logging configuration")
    monkeypatch.delenv("VLLM_LOGGING_CONFIG_PATH", raising=False)
    monkeypatch.setenv(arguments.LOG_CONFIG, "/ours.json")
    assert read().logging_config.pylogging_config_file == "/ours.json"

    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/theirs.json")
    assert read().logging_config is None


@pytest.mark.parametrize("revision", ["main", "v2"])
def test_hub_tokenizer_is_the_snapshot_of_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """The gateway reads the same files as the engine, including config.json."""
    weights = DEMO / "1" / "weights"
    snapshot = hugging_face_cache.write(tmp_path, "acme/tiny", weights, revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = SimpleNamespace(tokenizer="acme/tiny", tokenizer_revision=revision)
    assert arguments.tokenizer_folder(config) == str(snapshot)


def test_tokenizer_folder_is_unchanged(tmp_path: Path) -> None:
    """A local folder needs no download."""
    config = SimpleNamespace(tokenizer=str(tmp_path), tokenizer_revision=None)
    assert arguments.tokenizer_folder(config) == str(tmp_path)


def test_unknown_engine_argument_of_serve_is_named_with_a_similar_one() -> None:
    """vLLM's own list of arguments decides, before the server listens."""
    settings = load(flags={"engine_arg": ["max_modl_len=512"]})
    with pytest.raises(InvalidSettings, match=r"'max_modl_len'; did you mean 'max_model_len'\?"):
        cached_repository.repository("org/m", settings)


def test_check_names_unknown_engine_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model.json with one is not servable; the problem suggests a similar argument."""
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    version = mock_models.write(tmp_path, "m", config=config, model="./w", max_modl_len=512)
    tiny_tokenizer.write(version / "w")

    code = main(["check", "m", "--model-repository", str(tmp_path), "--json"])
    assert code == 1
    problem = json.loads(capsys.readouterr().out)["problem"]
    assert problem == (
        "model.json: vLLM has no engine argument 'max_modl_len'; did you mean 'max_model_len'?"
    )


def test_arguments_that_check_knows_exist() -> None:
    """`check` uses its own list instead of asking vLLM."""
    arguments.check_names(load_checks._KNOWN_ARGUMENTS)


@pytest.mark.parametrize(
    ("given", "backend"), [({}, "xgrammar"), ({"backend": "guidance"}, "guidance")]
)
def test_without_own_scheduler_one_grammar_engine_is_used(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], backend: str
) -> None:
    """vLLM keeps the grammar engine of the first request; a backend set in model.json is kept."""
    monkeypatch.setenv(versions.VARIABLE, "")

    config = read(structured_outputs_config=given).structured_outputs_config
    assert config["backend"] == backend


@needs_step_loop
def test_without_internal_parts_nothing_of_vllm_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunked prefill, which needs the gateway's worker for seeds, is off."""
    used = read()
    monkeypatch.setenv(versions.VARIABLE, "")
    public = read()

    assert used.scheduler_cls == arguments.SCHEDULER
    assert used.worker_cls == arguments.CPU_WORKER
    assert public.scheduler_cls is None
    assert public.worker_cls == "auto"
    assert public.enable_chunked_prefill is False


def test_lora_on_cpus_needs_a_correct_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until vLLM 0.33, outputs of the base model would be partly an adapter's."""
    monkeypatch.setenv(versions.VARIABLE, "")
    with pytest.raises(ValueError, match=r"model\.json: enable_lora: vLLM 0\.\d+.* on CPUs"):
        read(enable_lora=True)

    monkeypatch.setattr(versions, "CORRECT_CPU_LORA", (0, 0))
    assert read(enable_lora=True).enable_lora is True


def test_engine_processes_outlive_the_terminal() -> None:
    """Ctrl-C and a closed terminal signal the whole group, but streams must drain first."""
    program = "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    with arguments.terminal_signals_blocked():
        child = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )

    assert {str(signal.SIGINT.value), str(signal.SIGHUP.value)} <= set(child.stdout.split())
    assert not {signal.SIGINT, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, ())
