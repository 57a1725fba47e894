"""A command line of tritonserver starts the server, in its own process."""

from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess, free_port

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
