"""The start-up output of `serve`."""

import ast
import base64
import io
import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import rich.live  # before the clock is replaced: rich keeps the function
import rich.spinner  # noqa: F401

from openai_frontend.cli import banner


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_progress_is_logged_every_few_seconds_without_a_terminal(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the models and the elapsed time."""

    caplog.set_level("INFO")
    out = io.StringIO()
    progress = banner.LoadProgress(out, ["a", "b"])
    for clock[0] in (1.0, 5.0, 6.0, 10.0):
        progress.tick()
    progress.clear()
    assert out.getvalue() == ""
    assert caplog.messages == ["loading a, b: 5 s", "loading a, b: 10 s"]


def test_progress_says_what_each_model_does(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Models that are loaded already have left the line."""

    caplog.set_level("INFO")
    phases: dict[str, str] = {}
    progress = banner.LoadProgress(io.StringIO(), ["a", "b", "c"], lambda: phases)
    clock[0] = 5.0
    progress.tick()
    phases |= {"b": "reading weights", "c": ""}
    clock[0] = 10.0
    progress.tick()

    assert caplog.messages == ["loading a, b, c: 5 s", "loading b (reading weights), c: 10 s"]


def test_terminal_gets_one_line_that_is_redrawn(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spinner is erased when the models are loaded, and the cursor stays visible."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = banner.LoadProgress(out, ["a"])
    for clock[0] in (1.0, 2.0):
        progress.tick()
    progress.clear()

    shown = out.getvalue()
    assert "loading a: 1 s" in shown
    assert "loading a: 2 s" in shown
    assert shown.count("\n") <= 1
    assert shown.rindex("\x1b[2K") > shown.rindex("loading a: 2 s")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_model_name_is_not_markup(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in a name are shown as they are."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = banner.LoadProgress(out, ["[bold]a[/]"])
    progress.tick()
    progress.clear()

    assert "loading [bold]a[/]: 0 s" in out.getvalue()


def test_dumb_terminal_gets_log_lines(
    clock: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot redraw a line."""
    monkeypatch.setenv("TERM", "dumb")
    caplog.set_level("INFO")
    out = Terminal()
    progress = banner.LoadProgress(out, ["a"])
    clock[0] = 5.0
    progress.tick()
    progress.clear()

    assert out.getvalue() == ""
    assert caplog.messages == ["loading a: 5 s"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9/v1"),
        ("0.0.0.0", "http://127.0.0.1:9/v1"),  # noqa: S104  only written
        ("::", "http://[::1]:9/v1"),
        ("gpu-7.local", "http://gpu-7.local:9/v1"),
    ],
)
def test_address_is_reachable_for_clients(host: str, url: str) -> None:
    """A wildcard address becomes the loopback address."""

    assert banner.address(host, 9) == url


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        ("127.0.0.1", False),
        ("127.1.2.3", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),  # noqa: S104  only written
        ("::", True),
        ("10.0.0.1", True),
        ("gpu-7.local", True),
    ],
)
def test_address_open_to_others_gets_a_warning(host: str, warned: bool) -> None:
    """Without API keys, anyone who can reach the port can use the models."""

    assert (banner.exposure_warning(host) is not None) == warned


def test_server_without_models() -> None:
    """No examples are printed."""

    text = banner.ready(banner.ListenAddress("http://h:9/v1"), {})
    assert text == "Listening on http://h:9/v1, but no model can serve.\n"


def test_failed_models_are_listed_with_reasons() -> None:
    """One line each, because the log may be far above."""

    unready = {"b": "there is no /nope", "a": "out of memory"}
    text = banner.ready(banner.ListenAddress("http://h:9/v1"), {}, unready=unready)
    assert text.splitlines() == [
        "Listening on http://h:9/v1, but no model can serve:",
        "  a: out of memory",
        "  b: there is no /nope",
    ]


def sent_by_shell(text: str) -> list[str]:
    """The arguments that curl would get from the first command in the text."""
    _, _, command = text.partition("\n\ncurl ")
    script = f"printf '%s\\0' {command.partition(chr(10) * 2)[0]}"
    shown = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    return shown.stdout.split("\0")[:-1]


def test_model_name_is_quoted_for_the_shell() -> None:
    """A name with quotes stays one argument of curl."""

    text = banner.ready(banner.ListenAddress("http://h:9/v1"), {'it\'s "m"': ["chat"]})
    body = json.loads(sent_by_shell(text)[-1])
    assert body["model"] == 'it\'s "m"'


@pytest.mark.parametrize(
    ("models", "examples"),
    [
        ({"a": ["embeddings"]}, {"embeddings": "a"}),
        ({"a": ["rerank"], "b": ["completions"]}, {"completions": "b"}),
        (
            {"a": ["embeddings"], "b": ["completions", "chat"], "c": ["chat"]},
            {"chat/completions": "b", "completions": "b", "embeddings": "a"},
        ),
    ],
)
def test_each_endpoint_has_an_example_with_a_model_that_can_answer(
    models: dict[str, list[str]], examples: dict[str, str]
) -> None:
    """The ready message asks the first model of each kind, from a shell and from Python."""

    text = banner.ready(banner.ListenAddress("http://h:9/v1"), models)

    shown = re.findall(r'^curl http://h:9/v1/(\S+) [^}]*"model": "(\w+)"', text, re.M)
    called = re.findall(r'client\.(\S+)\.create\(model="(\w+)"', text)
    assert dict(shown) == examples
    assert {method.replace(".", "/"): model for method, model in called} == examples


def test_models_that_a_request_loads_have_examples_too() -> None:
    """After the loaded models, which come first where both can answer."""
    text = banner.ready(
        banner.ListenAddress("http://h:9/v1"),
        {"a": ["chat"]},
        on_demand={"v": ["chat", "images"], "w": ["transcription"]},
    )

    assert text.startswith("Ready on http://h:9/v1 with a. The first request loads v, w. Try it")
    assert re.findall(r"^curl http://h:9/v1/(\S+) ", text, re.M) == [
        "chat/completions",
        "chat/completions",
        "audio/transcriptions",
    ]
    assert re.findall(r'"model": "(\w+)"|model=(\w+)', text) == [("a", ""), ("v", ""), ("", "w")]


def test_model_that_loads_now_needs_no_request() -> None:
    """A client's request may have begun its load while others loaded at start."""
    place = banner.ListenAddress("http://h:9/v1")
    waiting = {"v": ["speech"], "w": ["speech"]}
    one = banner.ready(place, {}, on_demand=waiting, loading=["v"])
    both = banner.ready(place, {}, on_demand=waiting, loading=["v", "w"])

    start = "Ready on http://h:9/v1 with no model loaded."
    assert one.startswith(f"{start} Loading v. The first request loads w.")
    assert both.startswith(f"{start} Loading v, w.")
    assert "The first request" not in both


def test_example_of_an_upload_names_the_recording_of_the_model(tmp_path: Path) -> None:
    """Without one, a name that the caller replaces."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "example.flac").touch()
    models = {"w": ["transcription"]}
    place = banner.ListenAddress("http://h:9/v1")
    found = banner.ready(place, models, repositories=[tmp_path], keys=True)

    file = tmp_path / "w" / "example.flac"
    words = " ".join(found.replace("\\\n", "").split())
    assert f'-H "Authorization: Bearer $OPENAI_API_KEY" -F model=w -F file=@{file}' in words
    assert f'transcriptions.create(model="w", file=open("{file}", "rb")).text)' in words
    assert "file=@recording.wav" in banner.ready(place, models)


def test_examples_read_the_key_from_the_environment() -> None:
    """OpenAI's SDK reads the same variable."""

    text = banner.ready(banner.ListenAddress("http://h:9/v1"), {"m": ["chat"]}, keys=True)
    assert ' -H "Authorization: Bearer $OPENAI_API_KEY" ' in text
    assert 'client = OpenAI(base_url="http://h:9/v1")\n' in text


def test_example_with_a_picture_encodes_its_file(tmp_path: Path) -> None:
    """In the shell and in Python, so that the lines stay short."""

    (tmp_path / "v").mkdir()
    picture = tmp_path / "v" / "example.png"
    picture.write_bytes(b"picture")
    place = banner.ListenAddress("http://h:9/v1")
    text = banner.ready(place, {"v": ["images"]}, repositories=[tmp_path])
    lines = text.splitlines()
    sent = json.loads(sent_by_shell(text)[-1])
    url = f"data:image/png;base64,{base64.b64encode(b'picture').decode()}"
    assert sent["messages"][0]["content"][1] == {"type": "image_url", "image_url": {"url": url}}

    python = "\n".join(lines[lines.index("or from Python:") + 2 :])
    assert f'open("{picture}", "rb")' in python
    assert len(ast.parse(python).body) == 5
    compile(python, "example", "exec")


METADATA = {
    "inputs": [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "b", "datatype": "BYTES", "shape": [1]},
    ]
}


def test_tensor_models_are_ready_on_kserves_path() -> None:
    """With a request that infers with the first one."""

    text = banner.ready(
        banner.ListenAddress("http://h:9/v1"), {}, tensor_models={"cached": METADATA, "double": {}}
    )
    ready, _, curl = text.partition("\n\n")
    assert ready == "Ready on http://h:9/v2 with cached, double. Try it from a shell:"
    assert curl.startswith("curl http://h:9/v2/models/cached/infer ")
    assert json.loads(sent_by_shell(text)[-1]) == {
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 1.0]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["Triton"]},
        ]
    }

    both = banner.ready(
        banner.ListenAddress("http://h:9/v1"), {"m": ["rerank"]}, tensor_models={"t": {}}
    )
    assert both.startswith("Ready on http://h:9/v1 with m, and on http://h:9/v2 with t. Try it")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"inputs": [{"name": "a", "datatype": "FP16", "shape": [1]}]},
        {"inputs": [{"name": "a", "datatype": "FP32", "shape": [3, 224, 224]}]},
        {**METADATA, "decoupled": True},
    ],
)
def test_tensor_model_without_a_short_request(metadata: dict[str, object]) -> None:
    """The example shows its metadata."""

    place = banner.ListenAddress("http://h:9/v1")
    text = banner.ready(place, {}, tensor_models={"t": metadata}, keys=True)
    assert text.splitlines()[-1] == (
        'curl http://h:9/v2/models/t -H "Authorization: Bearer $OPENAI_API_KEY"'
    )


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("socket", [None, Path("/run/openai-frontend/main/gateway.sock")])
def test_start_message_fits_100_columns(socket: Path | None, keys: bool) -> None:
    """With the demo models and a tensor model; only longer names and paths make longer lines."""
    text = banner.ready(
        banner.ListenAddress("http://127.0.0.1:9000/v1", socket),
        {"demo": ["chat", "completions"], "demo-embedding": ["embeddings"]},
        on_demand={
            "demo-classifier": ["classification", "moderation"],
            "demo-vision": ["chat", "images"],
            "demo-speech": ["transcription"],
        },
        tensor_models={"add-and-subtract": METADATA},
        keys=keys,
        repositories=[Path("model_repository")],
    )

    assert text.count("curl ") == 7
    assert [line for line in text.splitlines() if len(line) > 100] == []


def test_model_without_an_example() -> None:
    """Only its name is printed."""

    text = banner.ready(banner.ListenAddress("http://h:9/v1"), {"a": ["rerank"]})
    assert text == "Ready on http://h:9/v1 with a.\n"
