"""Every command of the documentation runs, or a table gives the reason why not."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import httpx
import pytest

from benchmarks.peers import command as peers
from tests import mock_models
from tests.docs.documented_commands import COMMANDS, NOT_RUN, PAGES, RUN, Command, blocks
from tests.fast.lora.files import write_peft
from tests.gateway_process import COMMAND, ROOT, GatewayProcess
from tests.ports import free_port

LANGUAGES = {"sh", "console", "python", "yaml", "json", "toml", "text", "nginx", "protobuf"}
DEMO = re.compile(r"""["/]demo["/]""")  # requests for the demo model, which vLLM runs
FOR_DEMO = [command for command in RUN if DEMO.search(command.text)]
OTHERS = [command for command in RUN if command not in FOR_DEMO]
BY_PAGE = {page: list(of) for page, of in groupby(OTHERS, key=lambda command: command.page)}

# What pages call something -> what it is in the test's folder
STAND_INS = {
    "/models/Llama-3.1-8B-Instruct": "weights/Llama-3.1-8B-Instruct",
    "/loras/sql": "loras/sql",
    "--model-repository /models": "--model-repository models",
    "/path/to/models": "models",
    "/path/to/weights": "weights/Llama-3.1-8B-Instruct",
    "check MODEL": "check llama",
    ".venv/bin/openai-frontend": "openai-frontend",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_names_its_language(page: Path) -> None:
    """Otherwise a command could hide in a block that is not run."""
    assert {language for language, _ in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_each_reason_applies_to_a_command(pattern: str) -> None:
    assert any(re.search(pattern, f"{each.page}: {each.text}") for each in COMMANDS)


@pytest.mark.parametrize("reason", NOT_RUN.values())
def test_files_named_by_a_reason_exist(reason: str) -> None:
    for path in re.findall(r"[\w./]+(?:/\w+|\.py)", reason):
        assert (ROOT / path).exists() or (ROOT / "tests/docs" / path).exists()


def test_pages_have_commands_of_each_kind() -> None:
    assert len(FOR_DEMO) >= 5
    assert len(OTHERS) >= 20


PEERS = [each.text for each in COMMANDS if "-m benchmarks.peers" in each.text]


@pytest.mark.parametrize("command", PEERS)
def test_options_of_the_peers_benchmark_exist(command: str) -> None:
    """The parser exits with an error for an unknown option or value."""
    words = shlex.split(command, comments=True)

    assert peers.parser().parse_args(words[words.index("benchmarks.peers") + 1 :])


@pytest.mark.engine
@pytest.mark.parametrize("command", FOR_DEMO, ids=lambda command: command.page)
def test_request_for_the_demo_model(
    gateway: GatewayProcess, tmp_path: Path, command: Command
) -> None:
    """It succeeds, and the answer has text."""
    result = Session(tmp_path, gateway.url).run(command)

    assert not re.search('"error": *(?!null)', result)
    assert re.search("Triton|text_output", result)


@pytest.mark.slow
@pytest.mark.parametrize("page", BY_PAGE)
def test_commands_of_page(page: str, tmp_path: Path) -> None:
    """They run one after the other in one folder, as a reader enters them."""
    session = Session(write_folder(tmp_path))
    with session.gateway_if_needed(BY_PAGE[page]):
        for command in BY_PAGE[page]:
            output = session.run(command)
            assert not command.output or output == command.output, command.text


def write_folder(folder: Path) -> Path:
    """The clone's folders that commands name, and a repository `models` with a model `llama`."""
    (folder / "docs").symlink_to(ROOT / "docs")
    shutil.copytree(ROOT / "model_repository", folder / "model_repository")
    talks = {"tokens": ["Triton"], "answer_tokens": 4, "max_lora_rank": 16}
    mock_models.write_with_tokenizer(folder / "models", "llama", **talks)
    mock_models.write_with_tokenizer(folder / "models", "demo-embedding")
    write_peft(folder / "models" / "llama" / "adapters" / "pirate")
    (folder / "models" / "llama" / "openai_frontend.yaml").write_text("adapter_folder: adapters\n")
    write_peft(folder / "loras" / "sql")
    weights = folder / "weights" / "Llama-3.1-8B-Instruct"
    shutil.copytree(ROOT / "model_repository" / "demo" / "1" / "weights", weights)
    config = weights / "config.json"
    text = config.read_text()
    config.write_text(re.sub(r'("max_position_embeddings": )\d+', r"\g<1>131072", text))
    return folder


class Session:
    """A shell in a folder, next to a gateway."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self._folder = folder
        self._url = url
        # As a reader sees it: a status other than 2xx is a failure.
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")

    @contextmanager
    def gateway_if_needed(self, commands: list[Command]) -> Iterator[None]:
        """A gateway for requests, `top` and `connect`."""
        if not any(re.search(r"curl | top| connect ", each.text) for each in commands):
            yield
            return
        options = ("--model-control-mode=explicit", "--load-model=*", "--enable-model-management")
        log = self._folder / "log"
        with GatewayProcess(self._folder / "models", log, *options) as process:
            process.wait_until_ready()
            self._url = process.url
            yield

    def run(self, command: Command) -> str:
        """Fails unless the command succeeds; returns its output."""
        text = command.text
        for name, stand_in in STAND_INS.items():
            text = text.replace(name, stand_in)
        text = re.sub(r"(?:http://)?(?:127\.0\.0\.1|localhost):9000", self._url, text)
        text = text.replace("--grpc-port 8001", "--grpc-port 0")
        if command.language == "python":
            return self._finish(self._start([sys.executable, "-c", text]))
        if "openai-frontend serve" in text:
            return self._serve(text)
        if "openai-frontend top" in text:
            return self._watch(text if self._url in text else f"{text} {self._url}")
        return self._finish(self._start(["bash", "-c", text]))

    def _serve(self, text: str) -> str:
        """Waits until the server is ready, then stops it as Ctrl-C does."""
        port = free_port()
        settings = {
            "OPENAI_FRONTEND_PORT": str(port),
            "OPENAI_FRONTEND_MODEL_REPOSITORY": str(self._folder / "models"),
        }
        server = self._start(["bash", "-c", text], **settings)
        deadline = time.monotonic() + 600
        while not ready(port) and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        was_ready = ready(port)
        output = self._interrupt(server)
        assert was_ready, output
        return output

    def _watch(self, text: str) -> str:
        """Waits for the first table."""
        process = self._start(["bash", "-c", text])
        line = process.stdout.readline()
        assert "openai-frontend http" in line, line
        return line + self._interrupt(process)

    def _start(self, command: list[str], **variables: str) -> subprocess.Popen[str]:
        path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "HOME": str(self._folder), "CURL_HOME": str(self._folder)}
        offline = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env={**os.environ, **own, **offline, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _interrupt(self, process: subprocess.Popen[str]) -> str:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        return self._finish(process)

    def _finish(self, process: subprocess.Popen[str]) -> str:
        try:
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 0, f"{process.args!r}\n{output}"
        return output


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=30).status_code == 200
    except httpx.TransportError:
        return False
