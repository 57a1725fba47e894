"""The running process: its printed examples, its signals and its exit codes."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.ports import free_port

pytestmark = pytest.mark.slow  # each starts a process


@contextmanager
def running(folder: Path, *options: str, **engine: Any) -> Iterator[GatewayProcess]:
    """The command with one mock model, ready."""
    mock_models.write_with_tokenizer(folder / "models", "m", **engine)
    with GatewayProcess(folder / "models", folder / "log", *options) as gateway:
        gateway.wait_until_ready()
        yield gateway


def stream(gateway: GatewayProcess, max_tokens: int) -> Any:
    body = {"model": "m", "prompt": "a", "stream": True, "max_tokens": max_tokens}
    return httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=120)


def exit_code(gateway: GatewayProcess) -> int:
    """Waits for the process to end by itself; signal 0 sends nothing."""
    return gateway.stop(0)


def printed(gateway: GatewayProcess) -> list[str]:
    """The announcement, which follows soon after the models are ready."""
    gateway.wait_for_line("print(")
    return gateway.output().splitlines()


def until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Its only model answers "yes" and has an alias that sorts before its name."""
    folder = tmp_path_factory.mktemp("talker")
    alias = "--model-option=m:aliases=a"
    with running(folder, alias, tokens=["yes"], answer_tokens=1) as gateway:
        yield gateway


# A stand-in for the extension of that name: the process aborts if its interpreter is finalized
REPORTS_LEAKS = """
import ctypes
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))
"""
IMPORTS_IT = """
import atexit, triton._C.libtriton
from openai_frontend.engines.mock import MockEngine as Engine
atexit.register(print, "exit functions have run")
"""


def test_failed_start_reports_no_leaks(tmp_path: Path) -> None:
    """Nothing keeps the objects of a core that did not start."""
    mock_models.write(tmp_path / "models", "m")
    options = ["--cache-config=absent:size=1048576"]
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as gateway:
        assert exit_code(gateway) == 1

    assert "startup failed" in gateway.output()
    assert "leaked" not in gateway.output()


def test_start_message_waits_for_preloaded_models(tmp_path: Path) -> None:
    """Until then, the progress names them."""
    mock_models.write_with_tokenizer(tmp_path / "models", "slow", load_s=6)
    mock_models.write_with_tokenizer(tmp_path / "models", "other")
    options = ["--model-control-mode=explicit", "--load-on-demand", "--load-model=slow"]
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as gateway:
        gateway.wait_until_ready()
        message = gateway.wait_for_line("Ready on")
        progress = gateway.wait_for_line("banner: loading")

    assert message.startswith(f"Ready on {gateway.url}/v1 with slow. The first request loads other")
    assert "loading slow" in progress


def test_stop_reports_no_leaks(tmp_path: Path) -> None:
    """Neither of the gateway nor of an extension that would report what the end leaves."""
    extension = tmp_path / "path" / "triton" / "_C"
    extension.mkdir(parents=True)
    (extension / "libtriton.py").write_text(REPORTS_LEAKS)
    (tmp_path / "path" / "importing.py").write_text(IMPORTS_IT)
    config = mock_models.CONFIG.replace('"mock"', '"importing:Engine"')
    mock_models.write(tmp_path / "models", "m", config=config)
    environment = {"PYTHONPATH": str(tmp_path / "path")}
    with GatewayProcess(tmp_path / "models", tmp_path / "log", environment=environment) as gateway:
        gateway.wait_until_ready()
        code = gateway.stop(signal.SIGTERM)

    assert code == 0
    assert "exit functions have run" in gateway.output()
    assert "leaked" not in gateway.output()


def test_printed_examples_use_the_model_name(talker: GatewayProcess) -> None:
    """The alias is listed after it."""

    lines = printed(talker)
    assert any(line.endswith("with m, a. Try it from a shell:") for line in lines)
    assert not any('"a"' in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_requested_stop_has_exit_code_0(tmp_path: Path, number: int) -> None:
    """Ctrl-C and SIGTERM stop the process cleanly."""

    with running(tmp_path) as gateway:
        assert gateway.stop(number) == 0


def test_stop_does_not_wait_for_samples_of_metrics(tmp_path: Path) -> None:
    """The core's thread that takes them sleeps for five minutes here."""
    with running(tmp_path, "--metrics-interval-ms=600000") as gateway:
        assert gateway.stop(timeout_s=60) == 0


def test_running_stream_may_finish_within_the_grace_period(tmp_path: Path) -> None:
    """A stream that ends within the grace period ends normally."""

    with running(tmp_path, "--graceful-shutdown-timeout-s=600", tokens_per_second=20) as gateway:
        with stream(gateway, 20) as response:
            lines = response.iter_lines()
            next(lines)
            signal_time = time.monotonic()
            os.kill(gateway.pid, signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert exit_code(gateway) == 0
        assert time.monotonic() - signal_time < 60  # not all of the grace period


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_closed_terminal_does_not_interrupt_a_shutdown(tmp_path: Path, first: int) -> None:
    """Its shell and the kernel may both send SIGHUP: running streams still finish."""

    with running(tmp_path, tokens_per_second=20) as gateway, stream(gateway, 20) as response:
        lines = response.iter_lines()
        next(lines)
        gateway.send_signal(first)
        until(lambda: not gateway.ready())  # signals sent together would merge into one
        gateway.send_signal(signal.SIGHUP)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert exit_code(gateway) == 0


def test_stop_does_not_wait_for_loading_models(tmp_path: Path) -> None:
    """No request runs yet, so none is lost."""

    mock_models.write(tmp_path / "models", "slow", load_s=600)
    with GatewayProcess(tmp_path / "models", tmp_path / "log") as gateway:
        gateway.wait_for_line("loading slow: ", 120)
        assert gateway.stop(signal.SIGINT, 60) == 0


def test_abort_logs_the_stacks(tmp_path: Path) -> None:
    """systemd's watchdog sends SIGABRT to a process that does not respond.

    The process is idle by then: CPython reads the stacks without the GIL, so a thread that starts
    or ends meanwhile can crash it (SIGSEGV) before it has logged all of them.
    """

    mock_models.write(tmp_path / "models", "slow", load_s=600)
    with GatewayProcess(tmp_path / "models", tmp_path / "log") as gateway:
        gateway.wait_for_line("loading slow: ", 120)
        assert gateway.stop(signal.SIGABRT, 60) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in gateway.output()
        for thread in (r'cli/serve.py", line \d+ in serve', r'server/loop_watchdog.py", line \d+'):
            assert re.search(thread, gateway.output())


def test_missing_library_is_one_line_and_code_1(tmp_path: Path) -> None:
    """The process exits by itself and says what is missing."""

    mock_models.write(tmp_path / "models", "m")
    options = ["--triton-library", "/nowhere/libtritonserver.so"]
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as gateway:
        code, lines = exit_code(gateway), gateway.output().splitlines()
    assert code == 1
    assert len(lines) == 1
    assert lines[0].endswith("triton_library: /nowhere/libtritonserver.so is not a file")


def test_serve_model_exits_if_its_model_does_not_load(tmp_path: Path) -> None:
    """The last line has the reason, because the user waits for this model."""

    repository = tmp_path / "openai-frontend" / "model-repositories" / "m-1"
    mock_models.write(repository, "m", config=mock_models.CONFIG.replace("mock", "nowhere:Engine"))
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    with GatewayProcess(repository, tmp_path / "log", environment=cache) as gateway:
        code, lines = exit_code(gateway), gateway.output().splitlines()
    assert code == 1
    assert lines[-2].endswith("but no model can serve:")
    assert "No module named 'nowhere'" in lines[-1]


def test_metrics_port(tmp_path: Path) -> None:
    """The second port serves the same /metrics and nothing else; it closes with the server."""
    port = free_port()

    with running(tmp_path, f"--metrics-port={port}") as gateway:
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics")
        other = httpx.get(f"http://127.0.0.1:{port}/v1/models")
        same = httpx.get(f"{gateway.url}/metrics")
        assert gateway.stop(signal.SIGTERM) == 0

    assert (metrics.status_code, same.status_code, other.status_code) == (200, 200, 404)
    assert "nv_inference_request_success" in metrics.text
    assert metrics.headers["content-type"] == same.headers["content-type"]


def test_metrics_port_in_use(tmp_path: Path) -> None:
    """If another process uses the port: one line and exit code 1, as for the main port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mock_models.write(tmp_path / "models", "m")
        options = (f"--metrics-port={port}",)
        with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as gateway:
            assert gateway.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}" in gateway.output()
