"""gRPC as users run it: the command's flag, a port that is in use, and the end of the process."""

import re
import signal
from pathlib import Path

import grpc
import pytest

from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from tests import mock_models
from tests.core.triton import python_models
from tests.gateway_process import GatewayProcess

STREAM = methods(INFERENCE)["ModelStreamInfer"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    mock_models.write(tmp_path / "models", "mock", tokens_per_second=20.0, answer_tokens=20)
    return tmp_path / "models"


def grpc_port(gateway: GatewayProcess) -> int:
    line = gateway.wait_for_line("gRPC listens")
    return int(re.findall(r"port=(\d+)", line)[0])


def text_request() -> bytes:
    sent = STREAM.request(model_name="mock")
    sent.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    sent.inputs.add(name="stream", datatype="BOOL", shape=[1])
    sent.raw_input_contents.extend([b"\x01\x00\x00\x00a", b"\x01"])
    serialized: bytes = sent.SerializeToString()
    return serialized


@pytest.mark.slow
def test_running_streams_finish_at_the_end_of_the_process(tmp_path, models):
    """SIGTERM lets a stream of gRPC finish within the grace period, as one of HTTP."""
    with GatewayProcess(models, tmp_path / "log", "--grpc-port=0") as gateway:
        gateway.wait_until_ready()
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port(gateway)}") as channel:
            call = channel.stream_stream(STREAM.path)(iter([text_request()]))
            received = [next(call)]
            gateway.send_signal(signal.SIGTERM)
            received += list(call)
        code = gateway.wait()

    assert code == 0
    final = STREAM.response.FromString(received[-1]).infer_response
    assert final.parameters["triton_final_response"].bool_param
    assert len(received) >= 20


@pytest.mark.slow
def test_python_models_load_at_the_same_time(tmp_path):
    """The Python backend forks for each of them; gRPC's own handlers of forks aborted the process,
    also where the environment turned them on.
    """
    for number in range(4):
        python_models.write(tmp_path / "models", f"python_{number}")
    environment = {"GRPC_ENABLE_FORK_SUPPORT": "1"}
    log = tmp_path / "log"

    with GatewayProcess(
        tmp_path / "models", log, "--grpc-port=0", environment=environment
    ) as gateway:
        gateway.wait_until_ready()
        assert "Fatal Python error" not in gateway.output()
        assert gateway.stop() == 0


@pytest.mark.slow
def test_port_in_use_ends_the_start(tmp_path, models):
    """The process ends with one line that names the address."""
    with GatewayProcess(models, tmp_path / "log", "--grpc-port=0") as gateway:
        gateway.wait_until_ready()
        port = grpc_port(gateway)
        with GatewayProcess(models, tmp_path / "second", f"--grpc-port={port}") as second:
            code = second.wait()
            output = second.output()

    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in output
