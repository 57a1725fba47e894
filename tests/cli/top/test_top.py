"""`openai-frontend top` as people and scripts run it."""

import concurrent.futures
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openai_frontend.cli import main
from openai_frontend.cli.top import command
from openai_frontend.cli.top.source import Unreachable
from tests.auth.key_files import bearer, key, write
from tests.cli.certificates import Authority
from tests.cli.top.told import ANSWERS, telling
from tests.gateway_process import COMMAND, ROOT, GatewayProcess
from tests.routers.mock_gateway import mock_gateway

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second between two looks is not what is tested; and no key of the user's is sent."""
    monkeypatch.setattr("openai_frontend.cli.top.command._ONCE_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def once(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code, and what was written."""
    code = main(["top", "--once", *arguments])
    written = capsys.readouterr()
    return code, written.out or written.err


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without control sequences."""

    with telling() as port:
        code, text = once(capsys, f"http://127.0.0.1:{port}")
    assert code == 0
    assert "\x1b" not in text
    demo, tired = text.splitlines()[-2:]
    assert demo.split()[:2] == ["demo", "3"]
    assert tired.endswith("it sleeps")


def test_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """One object on one line."""

    with telling() as port:
        _, text = once(capsys, "--json", f"http://127.0.0.1:{port}/v1")
    told = json.loads(text)
    assert told["status"] == "not ready"
    assert {model["model"]: model["running"] for model in told["models"]} == {
        "demo": 3,
        "tired": None,
    }


def test_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Aliases, versions and adapters stand in the row of their model in Triton."""
    listed = [
        {"id": "demo", "root": "demo", "parent": None},
        {"id": "alias", "root": "demo", "parent": None},
        {"id": "demo@1", "root": "demo", "parent": None},
        {"id": "demo:adapter", "root": "adapter", "parent": "demo"},
    ]
    with telling({**ANSWERS, "/v1/models": (200, json.dumps({"data": listed}))}) as port:
        _, text = once(capsys, "--json", f"http://127.0.0.1:{port}")

    assert [model["model"] for model in json.loads(text)["models"]] == ["demo", "tired"]


def test_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate is checked against the authority that is given, and without one refused."""

    authority = Authority(tmp_path, "authority")
    with telling(certificate=authority.certificate("server")) as port:
        url = f"https://127.0.0.1:{port}"
        assert once(capsys, url, f"--ca={authority.file}")[0] == 0
        code, text = once(capsys, url)
    assert code == 1
    assert "certificate verify failed" in text


def test_a_certificate_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the gateway lets those in alone who have one."""

    authority = Authority(tmp_path, "authority")
    server, client = authority.certificate("server"), authority.certificate("client")
    with telling(certificate=server, client_ca=authority.file) as port:
        asked = (f"https://127.0.0.1:{port}", f"--ca={authority.file}")
        assert once(capsys, *asked)[0] == 1
        assert once(capsys, *asked, f"--certificate={client}")[0] == 0


def test_a_unix_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gateway may listen there alone."""

    with telling(unix_socket=tmp_path / "socket"):
        code, text = once(capsys, f"--unix-socket={tmp_path / 'socket'}")
    assert code == 0
    assert "demo" in text


def test_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment or a file; without one it says which key is wanted."""

    (tmp_path / "key").write_text("sk-file\n")
    with telling(key="sk-file") as port:
        url = f"http://127.0.0.1:{port}"
        code, text = once(capsys, url)
        assert code == 1
        assert "scope `metrics`" in text
        assert once(capsys, url, f"--key-file={tmp_path / 'key'}")[0] == 0
        monkeypatch.setenv("OPENAI_API_KEY", "sk-file")
        assert once(capsys, url)[0] == 0


@pytest.mark.parametrize("body", ["<html>{", "\udcff\udcfe"])
def test_another_server(capsys: pytest.CaptureFixture[str], body: str) -> None:
    """What is no text of Prometheus', or none at all, is said to be so in one line."""

    with telling({"/metrics": (200, body)}) as port:
        code, text = once(capsys, f"http://127.0.0.1:{port}")
    assert code == 1
    assert text.endswith("is this a gateway?\n")
    assert text.count("\n") == 1


def test_names_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A name cannot tell the terminal what to do."""

    evil = {**ANSWERS, "/v1/models": (200, json.dumps({"data": [{"id": "\x1b]0;owned\x07"}]}))}
    with telling(evil) as port:
        _, text = once(capsys, f"http://127.0.0.1:{port}")
    assert "?]0;owned?" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://example.org"], "'ftp://example.org' is no http or https URL"),
        (["http://127.0.0.1:1/v2"], "'http://127.0.0.1:1/v2' has a path"),
        (["--key-file=/nowhere"], "/nowhere: No such file or directory"),
        (["https://127.0.0.1", "--ca=/nowhere"], "/nowhere: No such file or directory"),
        (
            ["https://127.0.0.1", f"--certificate={__file__}"],
            f"{__file__} holds no certificate with its key, as PEM",
        ),
        (["https://127.0.0.1", f"--ca={__file__}"], f"{__file__} holds no certificate, as PEM"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1: Connection refused"),
    ],
)
def test_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and exit code 1."""

    assert once(capsys, *arguments) == (1, f"openai-frontend: top: {message}\n")


# Ctrl-C reaches those whose controlling terminal it is, and who do not ignore it because whoever
# started the tests did.
_ON_A_TERMINAL = ("/usr/bin/env", "--default-signal=INT", "/usr/bin/setsid", "--ctty")


def test_a_gateway_that_is_not_there_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal each line stays; another reason is another line."""

    reasons = iter(["refused"] * 3 + ["reset"] * 2)

    def read(asked: object) -> None:
        reason = next(reasons, None)
        if reason is None:
            raise KeyboardInterrupt
        raise Unreachable(reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "read", read)
        main(["top", "http://127.0.0.1:1", "--interval=0.1"])

    assert capsys.readouterr().err.splitlines() == [
        f"openai-frontend: top: http://127.0.0.1:1: {reason}; trying again"
        for reason in ("refused", "reset")
    ]


class Terminal:
    """The command on a terminal of its own."""

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
        """Return once it has been written, from here on."""
        deadline, begin = time.monotonic() + DEADLINE_S, len(self.written)
        while text not in self.written[begin:]:
            assert time.monotonic() < deadline, self.written[begin:]
            self._read(0.2)

    def ctrl_c(self) -> int:
        """The exit code."""
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
    """One that wants keys: `watch` may look, `chat` may ask."""
    write(secrets, key("watch", scopes=frozenset({"metrics", "models"})), key("chat"))
    folder = tmp_path_factory.mktemp("gateway")
    with mock_gateway(folder, f"--keys-file={secrets}", "--public-health") as process:
        yield process


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Those that a test opens are closed in the end."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def ask(gateway: GatewayProcess, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=bearer("chat"), timeout=60).status_code


def test_a_gateway(gateway: GatewayProcess, terminals: list[Terminal]) -> None:
    """On a terminal the figures of a real gateway come and change; Ctrl-C gives the screen back."""

    terminal = Terminal(gateway.url, key="watch")
    terminals.append(terminal)
    terminal.wait_for("ready")
    assert [ask(gateway, "mock") for _ in range(3)] == [200] * 3
    terminal.wait_for(" ms")  # the time to a first token, since there was one
    assert terminal.ctrl_c() == 0
    assert terminal.written.startswith("\x1b[?1049h")
    assert terminal.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in terminal.written


def test_the_figures_of_a_gateway(
    gateway: GatewayProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every name that is asked for is one that the gateway has."""

    monkeypatch.setenv("OPENAI_API_KEY", "watch")
    monkeypatch.setattr("openai_frontend.cli.top.command._ONCE_S", 0.5)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(lambda: [ask(gateway, "mock") for _ in range(20)])
        code, text = once(capsys, "--json", gateway.url)
        assert set(asked.result()) == {200}
    told = json.loads(text)
    [mock] = told["models"]
    assert code == 0
    assert {name for name, value in told.items() if value is None} <= {"tokens_per_write"}
    lacking = {"engine_waiting", "cache", "queue_p99_s"}  # the mock engine has none, nothing waited
    assert {name for name, value in mock.items() if value is None} <= lacking


def test_a_gateway_that_goes(terminals: list[Terminal]) -> None:
    """It is waited for, and shown again once another one is there."""

    with telling() as port:
        terminal = Terminal(f"http://127.0.0.1:{port}")
        terminals.append(terminal)
        terminal.wait_for("it sleeps")
    terminal.wait_for("Connection refused; trying again")
    with telling(port=port):
        terminal.wait_for("it sleeps")
    assert terminal.ctrl_c() == 0
