"""`openai-frontend connect` against a server with set answers."""

import json
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.cli import main
from openai_frontend.cli.connect.agents import AGENTS
from schemas.models import Capabilities, ImageLimits, Model, ModelList
from tests.api.cli.top.fake_gateway import fake_gateway
from tests.ports import free_port

SECRET = "sk-secret"
IMAGES = ImageLimits(
    formats=["png"], detail=["auto"], max_images=1, max_image_bytes=1, max_image_pixels=1,
    max_pixels=1, max_tokens_per_image=None,
)  # fmt: skip


def model(name: str, *abilities: str, **fields: Any) -> Model:
    able = {each: each in abilities for each in Capabilities.model_fields}
    return Model(id=name, created=1, owned_by="us", capabilities=Capabilities(**able), **fields)


MODELS = [
    model("embedder", "embeddings", max_model_len=512),
    model("plain", "chat", max_model_len=4096),
    model("coder", "chat", "tools", "reasoning", "images", max_model_len=100_000, images=IMAGES),
    model("org/claude", "chat", "tools"),
]


@pytest.fixture(autouse=True)
def _without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def connect(
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    models: list[Model] = MODELS,
    answer: tuple[int, str] | None = None,
    key: str | None = None,
) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    listed = ModelList(data=models).model_dump_json()
    with fake_gateway({"/v1/models": answer or (200, listed)}, key=key) as port:
        code = main(["connect", *arguments, "--url", f"http://127.0.0.1:{port}/v1"])
    written = capsys.readouterr()
    return code, written.out.replace(str(port), "9000"), written.err.replace(str(port), "9000")


def written(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> Mapping[str, str]:
    """The files, by name below the folder."""
    code, _, error = connect(capsys, *arguments, "--write", str(folder))
    assert code == 0, error
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("agent", AGENTS)
def test_configuration_has_the_model_and_no_key(capsys, monkeypatch, tmp_path, agent):
    """The first model with chat and tools. What is printed is what is written."""
    monkeypatch.setenv("AGENT_KEY", SECRET)
    code, shown, error = connect(capsys, agent, "--key-variable", "AGENT_KEY", key=SECRET)
    monkeypatch.setenv("AGENT_KEY", "")
    files = written(capsys, tmp_path, agent, "--key-variable", "AGENT_KEY")

    assert code == 0, error
    assert SECRET not in shown
    assert all("coder" in each for each in files.values() if "base_url" not in each)
    assert "AGENT_KEY" in "".join(files.values())
    for name, content in files.items():
        assert f"# FOLDER/{name}\n" in shown
        assert content.splitlines()[-1] in shown
        assert "embedder" not in content


def test_codex_gets_a_catalogue(capsys, tmp_path):
    files = written(capsys, tmp_path, "codex")
    config, [entry] = (
        tomllib.loads(files["config.toml"]),
        json.loads(files["catalog.json"])["models"],
    )

    assert (tmp_path / config["model_catalog_json"]).is_file()
    assert config["model_providers"][config["model_provider"]]["env_key"] == "OPENAI_API_KEY"
    assert (entry["slug"], entry["context_window"]) == (config["model"], 100_000)
    assert entry["input_modalities"] == ["text", "image"]
    assert entry["default_reasoning_level"] == "medium"


def test_model_without_reasoning_and_images(capsys, tmp_path):
    """The configuration says so, and a note names what agents lack."""
    arguments = ("pi", "--model", "plain", "--write", str(tmp_path))
    code, _, error = connect(capsys, *arguments)
    [entry] = json.loads((tmp_path / "models.json").read_text())["providers"]["local"]["models"]

    assert code == 0
    assert (entry["reasoning"], entry["input"]) == (False, ["text"])
    assert (entry["contextWindow"], entry["maxTokens"]) == (4096, 1024)
    assert "'plain' supports no tools" in error
    assert "context of 4096 tokens" in error


def test_unknown_context_is_left_out(capsys, tmp_path):
    files = written(capsys, tmp_path, "opencode", "--model", "org/claude")
    config = json.loads(files["opencode.json"])

    assert config["model"] == "local/org/claude"
    assert "limit" not in config["provider"]["local"]["models"]["org/claude"]


def test_shell_reads_the_variables_of_claude_code(capsys, tmp_path):
    """The base URL has no /v1, and the token is the key's variable."""
    written(capsys, tmp_path, "claude")
    result = subprocess.run(
        ["/bin/sh", "-c", f". {tmp_path}/claude.env && env"],
        env={"PATH": os.environ["PATH"], "OPENAI_API_KEY": SECRET, "ANTHROPIC_API_KEY": "other"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(line.split("=", 1) for line in result.stdout.splitlines())

    assert not found["ANTHROPIC_BASE_URL"].endswith("/v1")
    assert found["ANTHROPIC_AUTH_TOKEN"] == SECRET
    assert found["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "coder"
    assert found["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "100000"
    assert "ANTHROPIC_API_KEY" not in found


@pytest.mark.parametrize(
    ("agent", "start"),
    [
        ("codex", "CODEX_HOME={0} OPENAI_API_KEY=none codex"),
        ("claude", ". {0}/claude.env && CLAUDE_CONFIG_DIR={0} claude"),
        ("pi", "PI_CODING_AGENT_DIR={0} OPENAI_API_KEY=none pi --provider local --model coder"),
        ("vscode", "code --user-data-dir {0}"),
    ],
)
def test_last_line_starts_the_agent(capsys, tmp_path, agent, start):
    """With some key, which agents require of servers without keys too."""
    _, shown, _ = connect(capsys, agent, "--write", str(tmp_path / "new folder"))

    assert shown.splitlines()[-1] == start.format(f"'{tmp_path}/new folder'")


def test_set_key_is_not_replaced(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    _, shown, _ = connect(capsys, "codex", key=SECRET)

    assert shown.splitlines()[-1] == "CODEX_HOME=FOLDER codex"


def test_same_configuration_is_written_again(capsys, tmp_path):
    listed = ModelList(data=MODELS).model_dump_json()
    with fake_gateway({"/v1/models": (200, listed)}) as port:
        command = ["connect", "pi", "--url", f"http://127.0.0.1:{port}", "--write", str(tmp_path)]
        assert [main(command), main(command)] == [0, 0]


def test_other_files_are_kept(capsys, tmp_path):
    """The folder may be the agent's own. Then nothing is written."""
    (tmp_path / "catalog.json").write_text("mine")
    code, _, error = connect(capsys, "codex", "--write", str(tmp_path))

    assert (code, "catalog.json has other contents" in error) == (1, True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


REFUSED: Mapping[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "no key": ((), {"key": SECRET}, "requires an API key: set OPENAI_API_KEY"),
    "scope": ((), {"answer": (403, "{}")}, "lacks the scope 'models'"),
    "status": ((), {"answer": (404, "{}")}, "/v1/models returned status 404"),
    "not JSON": ((), {"answer": (200, "<html>")}, "returned no list of models"),
    "no chat": ((), {"models": MODELS[:1]}, "the server has no chat model"),
    "close": (("--model", "codr"), {}, "no model 'codr'; did you mean 'coder'?"),
    "unknown": (("--model", "x"), {}, "no model 'x'; the server has plain, coder, org/claude"),
    "other kind": (("--model", "embedder"), {}, "the model 'embedder' is not a chat model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_failure_is_one_line(capsys, name):
    arguments, options, message = REFUSED[name]
    code, shown, error = connect(capsys, "codex", *arguments, **options)

    assert (code, shown) == (1, "")
    assert error.startswith("openai-frontend: connect: ")
    assert message in error
    assert error.count("\n") == 1


def test_wrong_key(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    code, _, error = connect(capsys, "codex", key=SECRET)

    assert (code, "refused the key in OPENAI_API_KEY" in error) == (1, True)


def test_server_that_does_not_run(capsys):
    code = main(["connect", "codex", "--url", f"http://127.0.0.1:{free_port()}"])

    assert code == 1
    assert "Connection refused; is the server running?" in capsys.readouterr().err


def test_claude_code_refuses_slashes(capsys):
    """It needs an alias, which the error says."""
    code, _, error = connect(capsys, "claude", "--model", "org/claude")

    assert (code, "add an alias" in error) == (1, True)


def test_variable_must_be_a_name(capsys):
    with pytest.raises(SystemExit):
        main(["connect", "codex", "--key-variable", "sk-secret"])
    assert "is not the name of an environment variable" in capsys.readouterr().err
