"""aiperf, in its own environment: every endpoint of ours that it supports."""

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
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CHAT = documented("aiperf")
# Special tokens are text here: an answer of special tokens alone (one in 600 of the demo model's,
# past its end) would have no text, which aiperf counts as an error.
SPECIAL_TOKENS = "--extra-inputs=skip_special_tokens:false"
DEMO = ("-m", "demo", *SMALL, "--extra-inputs=ignore_eos:true", SPECIAL_TOKENS)
MINILM = ("-m", "minilm", "--no-server-metrics")
IMAGES = ("--image-width-mean=512", "--image-height-mean=512", "--no-server-metrics")
SMALL_RANKING = (
    "--rankings-passages-mean=3",
    "--rankings-passages-prompt-token-mean=20",
    "--rankings-query-prompt-token-mean=10",
)

RUNS = {
    "chat": (*CHAT, SPECIAL_TOKENS),
    "chat with images": ("-m", "demo-vision", "--streaming", *IMAGES, *SMALL),
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
