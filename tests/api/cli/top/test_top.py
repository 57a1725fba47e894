"""`openai-frontend top` as users and scripts run it."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from openai_frontend.cli import main
from openai_frontend.cli.top import command
from openai_frontend.cli.top.scrape import Unreachable
from tests.api.cli.top.fake_gateway import ANSWERS, fake_gateway
from tests.api.routers.mock_gateway import mock_gateway
from tests.fast.auth.key_files import bearer, key, write
from tests.gateway_process import COMMAND, ROOT, GatewayProcess
from tests.medium.cli.certificates import Authority
from tests.ports import free_port

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the pause between scrapes, and the user's API key."""
    monkeypatch.setattr("openai_frontend.cli.top.command._ONCE_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def once(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    code = main(["top", "--once", *arguments])
    written = capsys.readouterr()
    return code, written.out or written.err


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"])
def test_output_to_a_file_has_no_control_sequences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """`--once` writes one table, whatever the environment claims about terminals."""
    monkeypatch.setenv(variable, "1")
    with fake_gateway() as port:
        code, text = once(capsys, f"http://127.0.0.1:{port}")
    assert code == 0
    assert "\x1b" not in text
    demo, tired = text.splitlines()[-2:]
    assert demo.split()[:2] == ["demo", "3"]
    assert tired.rstrip().endswith("still loading")


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_closed_pipe_ends_it(form: tuple[str, ...]) -> None:
    """As in `openai-frontend top | head`: exit code 0 and no error."""
    with fake_gateway() as port:
        process = subprocess.Popen(
            [str(COMMAND), "top", "--interval=0.1", *form, f"http://127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _path()},
        )
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.stdout.close()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (0, b"")


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Models without a value have null."""
    with fake_gateway() as port:
        _, text = once(capsys, "--json", f"http://127.0.0.1:{port}/v1")
    told = json.loads(text)
    assert told["status"] == "not ready"
    assert {model["model"]: model["running"] for model in told["models"]} == {
        "demo": 3,
        "tired": None,
    }


def test_several_gateways(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each, also for one that does not answer; models are added up."""
    with fake_gateway() as one, fake_gateway() as other:
        urls = [f"http://127.0.0.1:{port}" for port in (one, other, free_port())]
        _, table = once(capsys, *urls)
        _, text = once(capsys, "--json", *urls)
    shown = json.loads(text)

    assert [each["gateway"] for each in shown["gateways"]] == urls
    assert [each["state"] for each in shown["gateways"]] == [
        "not ready",
        "not ready",
        "Connection refused",
    ]
    assert {model["model"]: model["running"] for model in shown["models"]} == {
        "demo": 6,
        "tired": None,
    }
    assert table.startswith("openai-frontend 3 gateways  not ready")
    assert all(url in table for url in urls)


def test_a_socket_is_one_gateway(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Several URLs would all be that one."""
    code, text = once(capsys, f"--unix-socket={tmp_path / 's'}", "http://a", "http://b")
    assert (code, "--unix-socket is one gateway" in text) == (1, True)


def test_aliases_share_the_row_of_their_model(capsys: pytest.CaptureFixture[str]) -> None:
    """So do versions and LoRA adapters: rows are models in Triton."""
    listed = [
        {"id": "demo", "root": "demo", "parent": None},
        {"id": "alias", "root": "demo", "parent": None},
        {"id": "demo@1", "root": "demo", "parent": None},
        {"id": "demo:adapter", "root": "adapter", "parent": "demo"},
    ]
    with fake_gateway({**ANSWERS, "/v1/models": (200, json.dumps({"data": listed}))}) as port:
        _, text = once(capsys, "--json", f"http://127.0.0.1:{port}")

    assert [model["model"] for model in json.loads(text)["models"]] == ["demo", "tired"]


def test_ca_verifies_the_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--ca`, a certificate of a private CA is rejected."""
    authority = Authority(tmp_path, "authority")
    with fake_gateway(certificate=authority.certificate("server")) as port:
        url = f"https://127.0.0.1:{port}"
        assert once(capsys, url, f"--ca={authority.file}")[0] == 0
        code, text = once(capsys, url)
    assert code == 1
    assert "certificate verify failed" in text


def test_client_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway that requires client certificates is reached with `--certificate`."""
    authority = Authority(tmp_path, "authority")
    server, client = authority.certificate("server"), authority.certificate("client")
    with fake_gateway(certificate=server, client_ca=authority.file) as port:
        asked = (f"https://127.0.0.1:{port}", f"--ca={authority.file}")
        assert once(capsys, *asked)[0] == 1
        assert once(capsys, *asked, f"--certificate={client}")[0] == 0


def test_unix_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--unix-socket` connects to a gateway without a port."""
    with fake_gateway(unix_socket=tmp_path / "socket"):
        code, text = once(capsys, f"--unix-socket={tmp_path / 'socket'}")
    assert code == 0
    assert "demo" in text


def test_api_key_from_environment_or_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, the error names the required scope."""
    (tmp_path / "key").write_text("sk-file\n")
    with fake_gateway(key="sk-file") as port:
        url = f"http://127.0.0.1:{port}"
        code, text = once(capsys, url)
        assert code == 1
        assert "scope `metrics`" in text
        assert once(capsys, url, f"--key-file={tmp_path / 'key'}")[0] == 0
        monkeypatch.setenv("OPENAI_API_KEY", "sk-file")
        assert once(capsys, url)[0] == 0


@pytest.mark.parametrize("body", ["<html>{", "\udcff\udcfe"])
def test_metrics_in_another_format(capsys: pytest.CaptureFixture[str], body: str) -> None:
    """A server that is not a gateway gives an error of one line."""
    with fake_gateway({"/metrics": (200, body)}) as port:
        code, text = once(capsys, f"http://127.0.0.1:{port}")
    assert code == 1
    assert text.endswith("is this a gateway?\n")
    assert text.count("\n") == 1


def test_control_characters_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A model's name cannot send commands to the terminal."""
    evil = {**ANSWERS, "/v1/models": (200, json.dumps({"data": [{"id": "\x1b]0;owned\x07"}]}))}
    with fake_gateway(evil) as port:
        _, text = once(capsys, f"http://127.0.0.1:{port}")
    assert "?]0;owned?" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://example.org"], "'ftp://example.org' is not an http or https URL"),
        (["http://127.0.0.1:1/v2"], "'http://127.0.0.1:1/v2' has a path other than /v1"),
        (["--key-file=/nowhere"], "/nowhere: No such file or directory"),
        (["https://127.0.0.1", "--ca=/nowhere"], "/nowhere: No such file or directory"),
        (
            ["https://127.0.0.1", f"--certificate={__file__}"],
            f"{__file__} does not contain a PEM certificate and its key",
        ),
        (["https://127.0.0.1", f"--ca={__file__}"], f"{__file__} contains no PEM certificate"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1: Connection refused"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1."""
    assert once(capsys, *arguments) == (1, f"openai-frontend: top: {message}\n")


# Ctrl-C needs a controlling terminal, and a SIGINT that the parent process did not ignore.
_ON_A_TERMINAL = ("/usr/bin/env", "--default-signal=INT", "/usr/bin/setsid", "--ctty")


def test_output_to_a_file_reports_each_failure_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The same failure is not repeated; another reason is another line."""
    reasons = iter(["refused"] * 3 + ["reset"] * 2)

    def scrape(address: object) -> None:
        reason = next(reasons, None)
        if reason is None:
            raise KeyboardInterrupt
        raise Unreachable(reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "scrape", scrape)
        main(["top", "http://127.0.0.1:1", "--interval=0.1"])

    assert capsys.readouterr().err.splitlines() == [
        f"openai-frontend: top: http://127.0.0.1:1: {reason}; retrying"
        for reason in ("refused", "reset")
    ]


class Terminal:
    """The command on its own pseudo-terminal."""

    def __init__(self, *arguments: str, key: str | None = None) -> None:
        self._screen, at_child = pty.openpty()
        environment = {**os.environ, "COLUMNS": "110", "LINES": "20", "PYTHONPATH": _path()}
        if key is not None:
            environment["OPENAI_API_KEY"] = key
        self.process = subprocess.Popen(
            [*_ON_A_TERMINAL, str(COMMAND), "top", "--interval=0.2", *arguments],
            stdin=at_child,
            stdout=at_child,
            stderr=at_child,
            env=environment,
        )
        os.close(at_child)
        self.written = ""

    def wait_for(self, text: str) -> None:
        """Waits until the text appears in the output after this call."""
        deadline, begin = time.monotonic() + DEADLINE_S, len(self.written)
        while text not in self.written[begin:]:
            assert time.monotonic() < deadline, self.written[begin:]
            self._read(0.2)

    def ctrl_c(self) -> int:
        """Returns the exit code."""
        os.write(self._screen, b"\x03")
        code = self.process.wait(DEADLINE_S)
        while self._read(0.2):
            pass
        return code

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._screen], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other end is closed
            return False
        self.written += data.decode()
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._screen)


def _path() -> str:
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def gateway(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with API keys: `watch` may read metrics, `chat` may send requests."""
    write(secrets, key("watch", scopes=frozenset({"metrics", "models"})), key("chat"))
    folder = tmp_path_factory.mktemp("gateway")
    with mock_gateway(folder, f"--keys-file={secrets}", "--public-health") as process:
        yield process


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def ask(gateway: GatewayProcess, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=bearer("chat"), timeout=60).status_code


def lags(gateway: GatewayProcess) -> str:
    """The line that counts the measurements of the event loop's lag."""
    text = httpx.get(f"{gateway.url}/metrics", headers=bearer("watch"), timeout=60).text
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith("openai_frontend_event_loop_lag_seconds_count")
    ]
    return line


@pytest.mark.slow
def test_live_view(gateway: GatewayProcess, terminals: list[Terminal]) -> None:
    """The view of a real gateway updates; Ctrl-C restores the screen."""
    terminal = Terminal(gateway.url, key="watch")
    terminals.append(terminal)
    terminal.wait_for("ready")
    assert [ask(gateway, "mock") for _ in range(3)] == [200] * 3
    terminal.wait_for(" ms")  # the time to first token
    assert terminal.ctrl_c() == 0
    assert terminal.written.startswith("\x1b[?1049h")
    assert terminal.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in terminal.written


@pytest.mark.slow
def test_every_metric_exists_in_a_gateway(
    gateway: GatewayProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fields have values after some requests."""
    monkeypatch.setenv("OPENAI_API_KEY", "watch")
    asked: list[int] = []

    def ask_some(_: float) -> None:
        """Instead of the pause between the two scrapes. The lag is measured several times a second;
        a scrape may be late itself.
        """
        measured, deadline = lags(gateway), time.monotonic() + DEADLINE_S
        asked.extend(ask(gateway, "mock") for _ in range(20))
        while lags(gateway) == measured:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=ask_some))
    code, text = once(capsys, "--json", gateway.url)
    assert asked == [200] * 20
    told = json.loads(text)
    [mock] = told["models"]
    assert code == 0
    absent = {"tokens_per_write", "gpu_memory_used_bytes", "gpu_memory_total_bytes"}
    assert {name for name, value in told.items() if value is None} <= absent
    # A mock engine, an empty queue, no media
    missing = {"engine_waiting", "kv_cache_usage", "queue_p99_s", "images_per_s"}
    missing |= {"audio_seconds_per_s", "media_decode_p99_s", "media_hit_rate"}
    assert {name for name, value in mock.items() if value is None} <= missing


@pytest.mark.slow
def test_live_view_survives_a_restart_of_the_gateway(terminals: list[Terminal]) -> None:
    """It retries until the gateway answers again."""
    with fake_gateway() as port:
        terminal = Terminal(f"http://127.0.0.1:{port}")
        terminals.append(terminal)
        terminal.wait_for("still loading")
    terminal.wait_for("Connection refused; retrying")
    with fake_gateway(port=port):
        terminal.wait_for("still loading")
    assert terminal.ctrl_c() == 0
