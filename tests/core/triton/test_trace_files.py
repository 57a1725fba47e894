"""Traces of the real core in files: ensembles, rate, count, numbered files and the shutdown."""

import json
from pathlib import Path
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.config.trace_options import TENSORS, TIMESTAMPS, FileTraces
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing.file_tracing import FileTracing
from tests.core.triton.generation_inputs import collect, generation, text
from tests.core.triton.test_trace import ENSEMBLE


def tracing(
    path: Path, *, level: int = 4, rate: int = 1, count: int = -1, log_frequency: int = 0
) -> FileTracing:
    return FileTracing(FileTraces(path, level, rate, count, log_frequency))


async def asked(
    server: Any, tracing: FileTracing, model: str, inputs: Any, request_id: str = ""
) -> None:
    """One request of a client, from its head to the end of its response."""
    record = RequestRecord("req_1", method="POST")
    context = RequestContext("req_1", record=record)
    token = current.set(context)
    tracing.begin(record, None)
    try:
        await collect(server.infer(model, inputs, request_id=request_id))
    finally:
        current.reset(token)
        context.end()


async def asked_times(server: Any, tracing: FileTracing, times: int) -> None:
    for _ in range(times):
        await asked(server, tracing, "mock", generation(max_tokens=1))
    tracing.close()


def models(path: Path) -> list[dict[str, Any]]:
    return [each for each in json.loads(path.read_bytes()) if "model_name" in each]


def timestamps(path: Path) -> dict[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for each in json.loads(path.read_bytes()):
        for stamp in each.get("timestamps", ()):
            found.setdefault(each["id"], []).append((stamp["name"], stamp["ns"]))
    return found


async def test_steps_of_an_ensemble_have_parents(server, repository, tmp_path):
    """With the request's id, and times that ascend within those of the frontend."""
    folder = repository / "ensemble"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ENSEMBLE)
    await server.load_model("ensemble")
    path = tmp_path / "traces"
    traced = tracing(path)
    await asked(server, traced, "ensemble", {"QUESTION": text("go")}, "client's")
    traced.close()

    [whole, *steps] = models(path)
    assert whole["model_name"] == "ensemble"
    assert "parent_id" not in whole
    assert [each["parent_id"] for each in steps] == [whole["id"]] * 2
    assert {each["request_id"] for each in (whole, *steps)} == {"client's"}
    times = timestamps(path)
    names = [name for name, _ in times[whole["id"]]]
    assert names[:3] == ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START"]
    assert names[-1] == "HTTP_SEND_END"
    assert [name for name, _ in times[steps[0]["id"]]] == [
        "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END",
    ]  # fmt: skip
    assert all(ns == sorted(ns) for ns in ([ns for _, ns in each] for each in times.values()))


async def test_rate_and_shutdown(server, tmp_path):
    """Every second request is in the file once it is closed."""
    path = tmp_path / "traces"
    await asked_times(server, tracing(path, rate=2), 5)

    assert len(models(path)) == 2


async def test_count_ends_traces(server, tmp_path):
    path = tmp_path / "traces"
    traced = tracing(path, count=2)
    await asked_times(server, traced, 4)

    assert len(models(path.with_name("traces.0"))) == 2
    assert [each.name for each in tmp_path.glob("traces*")] == ["traces.0"]
    assert traced.setting(None).count == 0


async def test_log_frequency_rotates_files(server, tmp_path):
    path = tmp_path / "traces"
    await asked_times(server, tracing(path, log_frequency=2), 5)

    found = {each.name: len(models(each)) for each in tmp_path.glob("traces*")}
    assert found == {"traces.0": 2, "traces.1": 2, "traces.2": 1}


async def test_refused_request_counts_and_leaves_no_trace(server, tmp_path):
    """The file of the counted traces is complete without it."""
    path = tmp_path / "traces"
    traced = tracing(path, count=2)
    with pytest.raises(errors.GatewayError):
        await asked(server, traced, "mock", {"unknown": text("x")})
    await asked_times(server, traced, 2)

    assert len(models(path.with_name("traces.0"))) == 1


async def test_nothing_is_sampled_while_off(server, tmp_path):
    """The request's record has no sampler, and nothing is written."""
    path = tmp_path / "traces"
    traced = FileTracing(FileTraces(path, 0, 1, -1, 0))
    record = RequestRecord("req_1")
    traced.begin(record, None)
    await asked_times(server, traced, 1)

    assert record.sampler is None
    assert not path.exists()


async def test_tensors(server, tmp_path):
    """The model's inputs and outputs, with times only if the level has both bits."""
    for level, has_times in ((TENSORS, False), (TENSORS | TIMESTAMPS, True)):
        path = tmp_path / str(level)
        await asked_times(server, tracing(path, level=level), 1)
        found = json.loads(path.read_bytes())
        tensors = [(each["activity"], each["tensor"]) for each in found if "tensor" in each]

        assert any("timestamps" in each for each in found) is has_times
        names = {(activity, tensor["name"]) for activity, tensor in tensors}
        assert ("TENSOR_QUEUE_INPUT", "text_input") in names
        assert ("TENSOR_BACKEND_OUTPUT", "text_output") in names
        [prompt] = [each for _, each in tensors if each["name"] == "text_input"][:1]
        assert (prompt["dtype"], prompt["shape"]) == ("BYTES", "1")


async def test_large_tensor_has_no_data(server, tmp_path):
    """Its name and shape remain."""
    path = tmp_path / "traces"
    traced = tracing(path, level=TENSORS)
    inputs = {**generation(max_tokens=1), "text_input": text("x" * 300_000)}
    await asked(server, traced, "mock", inputs)
    traced.close()

    found = [each["tensor"] for each in json.loads(path.read_bytes()) if "tensor" in each]
    assert {each["data"] for each in found if each["name"] == "text_input"} == {""}
