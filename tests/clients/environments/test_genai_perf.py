"""genai-perf, in its own environment: the strictest parser of our streams."""

import pytest

from tests.clients.environments.profilers import (
    OUTPUT_TOKENS,
    SMALL,
    FolderOfRun,
    documented,
    exported,
    genai_perf,
    once,
)
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RUNS = {
    "chat": documented("genai-perf"),
    "completions": ("-m", "demo", *SMALL, "--streaming"),
    "embeddings": ("-m", "minilm", "--synthetic-input-tokens-mean=20"),
}


@pytest.fixture(scope="module")
def run(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> FolderOfRun:
    """The folder with the exports of the only run of an endpoint."""
    return once(genai_perf, gateway.url, RUNS, tmp_path_factory)


@pytest.mark.parametrize("kind", RUNS)
def test_run_succeeds(run, kind):
    """Three intervals pass without an error, and the export counts their requests."""
    export = exported(run(kind), "profile_export_genai_perf.json")

    assert export["request_count"]["avg"] > 0


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_each_stream_has_tokens_and_times(run, kind):
    """genai-perf finds text in each stream, no more than requested, and inter-token latencies.

    It tokenizes the text of each event. If events arrive late, one has the text of several tokens,
    which may be split differently: a few answers then count a token more.
    """
    export = exported(run(kind), "profile_export_genai_perf.json")

    assert 0 < export["output_sequence_length"]["avg"] < OUTPUT_TOKENS + 0.5
    assert export["inter_token_latency"]["avg"] > 0


def test_prompts_are_lists(run):
    """It sends completions a list of one prompt, which gets one answer."""
    inputs = exported(run("completions"), "inputs.json")

    assert [type(prompt) for prompt in inputs["data"][0]["payload"][0]["prompt"]] == [str]
