"""aiperf, in its own environment: every endpoint of ours that it supports."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.clients.environments.profilers import (
    OUTPUT_TOKENS,
    REQUESTS,
    SMALL,
    FolderOfRun,
    aiperf,
    documented,
    exported,
    once,
)
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CHAT = documented("aiperf")
# Special tokens are text here: an answer of special tokens alone (one in 600 of the demo model's,
# past its end) would have no text, which aiperf counts as an error.
SPECIAL_TOKENS = "--extra-inputs=skip_special_tokens:false"
DEMO = ("-m", "demo", *SMALL, "--extra-inputs=ignore_eos:true", SPECIAL_TOKENS)
DEMO_VISION = ("-m", "demo-vision", "--extra-inputs=ignore_eos:true", SPECIAL_TOKENS)
MINILM = ("-m", "minilm", "--no-server-metrics")
IMAGES = ("--image-width-mean=512", "--image-height-mean=512", "--no-server-metrics")
SMALL_RANKING = (
    "--rankings-passages-mean=3",
    "--rankings-passages-prompt-token-mean=20",
    "--rankings-query-prompt-token-mean=10",
)

RUNS = {
    "chat": (*CHAT, SPECIAL_TOKENS),
    "chat with images": (*DEMO_VISION, "--streaming", *IMAGES, *SMALL),
    "completions": (*DEMO, "--streaming", "--no-server-metrics"),
    "embeddings": (*MINILM, "--synthetic-input-tokens-mean=20"),
    "cohere_rankings": (*MINILM, *SMALL_RANKING),
    "hf_tei_rankings": (*MINILM, *SMALL_RANKING),
}


@pytest.fixture(scope="module")
def run(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> FolderOfRun:
    """The folder with the exports of the only run of an endpoint."""
    return once(aiperf, gateway.url, RUNS, tmp_path_factory)


@pytest.mark.parametrize("kind", RUNS)
def test_every_request_succeeds(run, kind):
    """The run exits with 0, counts each request, and reports no error."""
    export = exported(run(kind), "profile_export_aiperf.json")

    assert export["error_summary"] == []
    assert export["request_count"]["avg"] == REQUESTS


AUDIO = ("--audio-length-mean=1", "--audio-length-stddev=0", "--no-server-metrics")
# A model of random weights may answer with no text: it ends at once, or its bytes are no UTF-8
LETTERS = json.dumps({"structured_outputs": {"regex": "[a-z]{8}"}})
HEARS = ("-m", "hears", f"--extra-inputs={LETTERS}")
AUDIO_RUNS = {
    "chat with WAV": (*HEARS, "--streaming", "--audio-format=wav", *AUDIO, *SMALL),
    "chat with MP3": (*HEARS, "--audio-format=mp3", *AUDIO, *SMALL),
    "audio_transcription": ("-m", "demo-speech", *AUDIO),
}


@pytest.fixture(scope="module")
def audio_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FolderOfRun]:
    """As `run`, of models that hear."""
    folder = tmp_path_factory.mktemp("audio")
    # In a process of its own, because transformers changes the environment
    program = [
        sys.executable,
        "-m",
        "tests.vllm.tiny_audio_model",
        str(folder / "models" / "hears"),
    ]
    subprocess.run(program, cwd=ROOT, check=True, capture_output=True)
    speech = folder / "models" / "demo-speech"
    shutil.copytree(ROOT / "model_repository" / "demo-speech", speech)
    (speech / "openai_frontend.yaml").unlink()  # it is loaded at start
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield once(aiperf, process.url, AUDIO_RUNS, tmp_path_factory)


@pytest.mark.parametrize("kind", AUDIO_RUNS)
def test_every_request_with_audio_succeeds(audio_run, kind):
    """As without audio; synthetic noise of a second each."""
    export = exported(audio_run(kind), "profile_export_aiperf.json")

    assert export["error_summary"] == []
    assert export["request_count"]["avg"] == REQUESTS


def test_usage_comes_with_every_chunk_on_request(run):
    """--per-chunk-usage sends continuous_usage_stats, and aiperf counts tokens by that usage."""
    export = exported(run("chat"), "profile_export_aiperf.json")

    assert export["output_sequence_length"]["avg"] == OUTPUT_TOKENS


def test_prompt_tokens_equal_aiperfs_count(run):
    """The usage of a completions stream matches aiperf's own tokenizer."""
    export = exported(run("completions"), "profile_export_aiperf.json")

    assert export["usage_prompt_tokens"]["avg"] == export["input_sequence_length"]["avg"]


def test_aiperf_scrapes_our_metrics(run):
    """It finds /metrics on the same port, with Triton's counters."""
    export = exported(run("chat"), "server_metrics_export.json")

    assert any(name.startswith("nv_inference") for name in export["metrics"])
