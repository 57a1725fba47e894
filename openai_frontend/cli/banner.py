"""What `serve` writes at start-up: load progress, address, and example requests."""

import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from openai_frontend.cli.console import console_of
from openai_frontend.loopback import is_loopback

logger = logging.getLogger(__name__)

_LINE_EVERY_S = 5.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  only compared

QUESTION = [{"role": "user", "content": "What is Triton?"}]


class LoadProgress:
    """What loads and for how long: a spinner on a terminal, else a log line every few seconds."""

    def __init__(self, out: TextIO, models: Sequence[str]) -> None:
        self._models = ", ".join(models) or "the server"
        self._started_s = time.monotonic()
        self._next_line_s = _LINE_EVERY_S
        self._spinner = _Spinner(out) if out.isatty() and not _is_dumb() else None

    def tick(self) -> None:
        """Called several times a second while models load."""
        elapsed_s = time.monotonic() - self._started_s
        if self._spinner is not None:
            self._spinner.show(f"loading {self._models}: {elapsed_s:.0f} s")
        elif elapsed_s >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            logger.info("loading %s: %.0f s", self._models, elapsed_s)

    def clear(self) -> None:
        if self._spinner is not None:
            self._spinner.clear()


def _is_dumb() -> bool:
    """Whether the terminal ignores control sequences, as in Emacs."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


class _Spinner:
    """One line of a terminal, redrawn by `show`. Needs no thread."""

    def __init__(self, out: TextIO) -> None:
        from rich.live import Live  # not needed without a terminal
        from rich.spinner import Spinner
        from rich.text import Text

        self._text = Text
        self._spinner = Spinner("line")
        self._live = Live(
            console=console_of(out),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, text: str) -> None:
        if not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor()  # also if the process is killed while models load
        self._spinner.update(text=self._text(text))  # a name may contain markup
        self._live.update(self._spinner, refresh=True)

    def clear(self) -> None:
        self._live.stop()


class StartupBanner:
    """Shows the progress of loading, then the address and examples (`server.process`)."""

    def __init__(
        self,
        progress: LoadProgress,
        address: "ListenAddress",
        repositories: Sequence[Path] = (),  # in which models may have an example recording
    ) -> None:
        self._progress = progress
        self._address = address
        self._repositories = repositories

    def loading(self) -> None:
        self._progress.tick()

    def clear(self) -> None:
        self._progress.clear()

    def ready(
        self,
        models: Mapping[str, Collection[str]],
        *,
        on_demand: Mapping[str, Collection[str]],
        keys: bool,
        unready: Mapping[str, str],
    ) -> str:
        text = ready(
            self._address,
            models,
            on_demand=on_demand,
            keys=keys,
            unready=unready,
            repositories=self._repositories,
        )
        sys.stdout.write(text)
        sys.stdout.flush()
        return status(models, unready)


def address(host: str, port: int) -> str:
    """The base URL for clients on this machine."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """How clients on this machine reach the server."""

    url: str  # the base URL
    unix_socket: Path | None = None  # None: TCP

    def __str__(self) -> str:
        return self.url if self.unix_socket is None else str(self.unix_socket)

    @property
    def curl_option(self) -> str:
        if self.unix_socket is None:
            return ""
        return f"--unix-socket {shlex.quote(str(self.unix_socket))} "

    def client(self, options: str) -> list[str]:
        """Python lines that create an OpenAI client; `options` are further arguments."""
        client = f'client = OpenAI(base_url="{self.url}"{options}'
        if self.unix_socket is None:
            return ["from openai import OpenAI", f"{client})"]
        transport = f"httpx.HTTPTransport(uds={json.dumps(str(self.unix_socket))})"
        imports = ["import httpx", "from openai import OpenAI"]
        return [*imports, f"{client}, http_client=httpx.Client(transport={transport}))"]


@dataclass(frozen=True, slots=True)
class _Example:
    """An example request: path, body without the model, and the part of the response to print."""

    path: str
    fields: Mapping[str, Any]
    shown: str

    def curl(self, place: "ListenAddress", model: str, *, keys: bool) -> str:
        body = json.dumps({"model": model, **self.fields})
        headers = "-H 'Content-Type: application/json'" + (_KEY if keys else "")
        return f"curl {place.curl_option}{place.url}/{self.path} {headers} -d {shlex.quote(body)}"

    def python(self, model: str) -> str:
        method = self.path.replace("/", ".")
        fields = {"model": model, **self.fields}
        arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
        return f"print(client.{method}.create({arguments}).{self.shown})"


@dataclass(frozen=True, slots=True)
class _Upload:
    """An example request with a file."""

    path: str
    file: str

    def curl(self, place: "ListenAddress", model: str, *, keys: bool) -> str:
        form = f"-F {shlex.quote(f'model={model}')} -F {shlex.quote(f'file=@{self.file}')}"
        return f"curl {place.curl_option}{place.url}/{self.path}{_KEY if keys else ''} {form}"

    def python(self, model: str) -> str:
        method = self.path.replace("/", ".")
        arguments = f'model={json.dumps(model)}, file=open({json.dumps(self.file)}, "rb")'
        return f"print(client.{method}.create({arguments}).text)"


_NO_KEY = ', api_key="none"'
_KEY = ' -H "Authorization: Bearer $OPENAI_API_KEY"'  # OpenAI's SDK reads it too

# A red circle on light grey, of 64 x 64 pixels: drawn like the pictures of the demo's training
_PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQMAAACQp+OdAAAABlBMVEXIyM3cKCjp5XrTAAAATUlEQVR42u3OsRGAIAAEwQ"
    "VnTG3BEuxAOrM1SrEMIzCAhFQNvejmPnmesVwg2uYuKYBJFjJiILWpEyPrWF5K4RxLJTc9am97GT//fMgNSo8K5bSJgBcA"
    "AAAASUVORK5CYII="
)
_SEEN = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PICTURE}"}},
    {"type": "text", "text": "Describe the picture."},
]

_EXAMPLES = {
    "chat": _Example("chat/completions", {"messages": QUESTION}, "choices[0].message.content"),
    "completions": _Example("completions", {"prompt": "Triton is"}, "choices[0].text"),
    "embeddings": _Example("embeddings", {"input": "Triton"}, "data[0].embedding[:4]"),
    "images": _Example(
        "chat/completions",
        {"messages": [{"role": "user", "content": _SEEN}]},
        "choices[0].message.content",
    ),
}


def ready(
    place: ListenAddress,
    models: Mapping[str, Collection[str]],
    *,
    on_demand: Mapping[str, Collection[str]] = MappingProxyType({}),
    keys: bool = False,
    unready: Mapping[str, str] = MappingProxyType({}),
    repositories: Sequence[Path] = (),
) -> str:
    """The address, and a curl line and a Python line for each kind of request that a model serves.

    The lines work as they are; if the server needs a key, they read OPENAI_API_KEY. Only a model
    that transcribes needs a file: that named `example` in its folder, or else the caller's.
    `models`: name -> capabilities as in `/v1/models`; `on_demand`: those that a request loads.
    `unready`: name -> reason.
    """
    if not models and not on_demand:
        reasons = "".join(f"  {name}: {reason}\n" for name, reason in sorted(unready.items()))
        return f"Listening on {place}, but no model can serve{':' if reasons else '.'}\n{reasons}"
    served = ", ".join(models) if models else "no model loaded"
    later = f" The first request loads {', '.join(on_demand)}." if on_demand else ""
    ready_line = f"Ready on {place} with {served}.{later}"
    examples = list(_examples({**models, **on_demand}, repositories))
    if not examples:
        return f"{ready_line}\n"
    shell = [example.curl(place, model, keys=keys) for example, model in examples]
    client = place.client("" if keys else _NO_KEY)
    python = [*client, *(example.python(model) for example, model in examples)]
    examples_with = "Try it with a key in OPENAI_API_KEY" if keys else "Try it"
    return "\n".join(
        [
            f"{ready_line} {examples_with} from a shell:",
            "",
            *shell,
            "",
            "or from Python:",
            "",
            *python,
            "",
        ]
    )


def _examples(
    models: Mapping[str, Collection[str]], repositories: Sequence[Path]
) -> Iterator[tuple[_Example | _Upload, str]]:
    """Each example that a model can answer, with the first such model."""
    for kind, example in _EXAMPLES.items():
        if (model := _first(models, kind)) is not None:
            yield example, model
    if (model := _first(models, "transcription")) is not None:
        yield _Upload("audio/transcriptions", _recording(model, repositories)), model


def _first(models: Mapping[str, Collection[str]], kind: str) -> str | None:
    return next((name for name, abilities in models.items() if kind in abilities), None)


def _recording(model: str, repositories: Sequence[Path]) -> str:
    """The path of the model's example, or a name that the caller replaces."""
    files = (file for path in repositories for file in (path / model).glob("example.*"))
    return str(next(files, "recording.wav"))


def status(models: Collection[str], unready: Collection[str]) -> str:
    """One line for the service manager."""
    serving = f"Serving {', '.join(models) or 'no model'}"
    return serving if not unready else f"{serving}; not ready: {', '.join(sorted(unready))}"


def exposure_warning(host: str) -> str | None:
    """A warning for an address that other machines can reach without an API key; else None."""
    if is_loopback(host):
        return None
    return (
        f"listening on {host or 'every address'} without API keys: "
        "anyone who can reach the port can use the models "
        "(--api-key, --keys-file, docs/authentication.md)"
    )
