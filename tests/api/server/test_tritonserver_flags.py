"""A command line of tritonserver starts the server, in its own process."""

import contextlib
import time
from pathlib import Path

import grpc
import httpx
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.ports import free_port

FLAGS = (
    "--model-control-mode=explicit --load-model=mock --strict-readiness=false --exit-on-error=false"
    " --log-verbose=1 --allow-gpu-metrics=false --rate-limit=off --http-thread-count=8"
    " --exit-timeout-secs=5 --backend-config=python,shm-default-byte-size=1048576"
    " --pinned-memory-pool-byte-size=0 --allow-http=true --allow-metrics=true --id=tritonserver"
)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    mock_models.write(tmp_path / "models", "mock", tokens=["a"])
    mock_models.write(tmp_path / "models", "other")
    return tmp_path / "models"


@pytest.mark.slow
def test_command_line_of_tritonserver_starts_the_server(tmp_path: Path, models: Path) -> None:
    """With ports for HTTP, gRPC and metrics, and the response cache of the wheel."""
    metrics, grpc = free_port(), free_port()
    ports = f"--http-port={free_port()} --grpc-port={grpc} --metrics-port={metrics}"
    options = [*f"{FLAGS} {ports}".split(), "--cache-config", "local,size=1048576"]
    # the last port wins, and the process needs its own one
    with GatewayProcess(models, tmp_path / "log", *options, "--http-address=127.0.0.1") as gateway:
        gateway.port = int(ports.split()[0].partition("=")[2])
        gateway.url = f"http://127.0.0.1:{gateway.port}"
        gateway.wait_until_ready()
        server = httpx.get(f"{gateway.url}/v2").json()
        index = httpx.post(f"{gateway.url}/v2/repository/index").json()
        body = {"text_input": "hi"}
        answer = httpx.post(f"{gateway.url}/v2/models/mock/generate", json=body)
        text = httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
        output = gateway.output()

    assert server["name"] == "tritonserver"
    assert {entry["name"] for entry in index if entry.get("state") == "READY"} == {"mock"}
    assert answer.status_code == 200, answer.text
    assert "nv_inference_count" in text
    assert "Loading cache library: 'local'" in output
    assert f"gRPC listens: host=127.0.0.1 port={grpc}" in output


@pytest.mark.slow
def test_model_that_fails_to_load_ends_the_server(tmp_path: Path, models: Path) -> None:
    """With --exit-on-error=true: one line names every model that failed, and the code is 1."""
    for name, version in (("broken", "1"), ("empty", "none")):  # the second has no version
        (models / name / version).mkdir(parents=True)
        (models / name / "config.pbtxt").write_text('backend: "nobody"', encoding="utf-8")
    options = ["--exit-on-error=true", "--model-control-mode=explicit", "--load-model=mock",
               "--load-model=broken", "--load-model=empty"]  # fmt: skip
    with GatewayProcess(models, tmp_path / "log", *options) as gateway:
        code, output = gateway.wait(), gateway.output()

    (line,) = [line for line in output.splitlines() if "exit-on-error" in line]
    assert code == 1, output
    assert "startup failed: exit-on-error: models failed to load: broken: " in line
    assert "; empty: not loaded; the core's log has the reason" in line
    assert "mock: " not in line
    assert "Ready on" not in output


@pytest.mark.slow
def test_models_that_load_do_not_end_the_server(tmp_path: Path, models: Path) -> None:
    with GatewayProcess(models, tmp_path / "log", "--exit-on-error") as gateway:
        gateway.wait_until_ready()
        answer = httpx.get(f"{gateway.url}/v1/models")
        code = gateway.stop()

    assert [each["id"] for each in answer.json()["data"]] == ["mock", "other"]
    assert (code, "models failed to load" in gateway.output()) == (0, False)


@pytest.mark.slow
def test_two_servers_share_their_ports(tmp_path: Path, models: Path) -> None:
    """With --reuse-http-port and --reuse-grpc-port, the second serves when the first has ended."""
    rpc = free_port()
    options = ["--reuse-http-port=true", "--reuse-grpc-port=1", f"--grpc-port={rpc}"]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(GatewayProcess(models, tmp_path / "first", *options))
        first.wait_until_ready()
        second = stack.enter_context(
            GatewayProcess(models, tmp_path / "second", *options, port=first.port)
        )
        await_output(second, f"port={rpc}")
        alone = stack.enter_context(GatewayProcess(models, tmp_path / "alone", port=first.port))
        refused = alone.wait(), alone.output()
        assert first.stop() == 0
        second.wait_until_ready()
        with grpc.insecure_channel(f"127.0.0.1:{rpc}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)

    assert refused[0] == 1
    assert "Address already in use" in refused[1]


def await_output(gateway: GatewayProcess, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in gateway.output():
        assert time.monotonic() < deadline, gateway.output()
        time.sleep(0.05)
