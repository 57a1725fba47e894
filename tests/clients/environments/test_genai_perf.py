"""genai-perf, in its own environment: the strictest parser of our streams."""

import json

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
    """genai-perf finds text in each stream and inter-token latencies, and each stream has at most
    one event with text per requested token.

    Its own counts of tokens have no upper bound here: if events arrive late, it tokenizes the text
    of several tokens at once, which may be split into more.
    """
    export = exported(run(kind), "profile_export_genai_perf.json")
    [experiment] = exported(run(kind), "profile_export.json")["experiments"]

    assert export["output_sequence_length"]["min"] > 0
    assert export["inter_token_latency"]["avg"] > 0
    for request in experiment["requests"]:
        received = "".join(output["response"] for output in request["response_outputs"])
        assert 0 < len(texts(received)) <= OUTPUT_TOKENS


def texts(received: str) -> list[str]:
    """The text of each event of a stream that has one."""
    events = [event.removeprefix("data: ") for event in received.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    found = (choice.get("text") or choice.get("delta", {}).get("content") for choice in choices)
    return [text for text in found if text]


def test_prompts_are_lists(run):
    """It sends completions a list of one prompt, which gets one answer."""
    inputs = exported(run("completions"), "inputs.json")

    assert [type(prompt) for prompt in inputs["data"][0]["payload"][0]["prompt"]] == [str]
