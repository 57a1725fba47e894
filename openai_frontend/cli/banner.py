"""The output of `serve` at start-up: load progress, address, and example requests."""

import logging
import os
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from openai_frontend.cli import request_examples
from openai_frontend.cli.console import console_of
from openai_frontend.cli.request_examples import ListenAddress as ListenAddress
from openai_frontend.runtime.loopback import is_loopback

logger = logging.getLogger(__name__)

_LINE_EVERY_S = 5.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  only compared


class LoadProgress:
    """Shows the models that are loading, and for how long: a spinner on a terminal, otherwise a log
    line every few seconds.
    """

    def __init__(
        self,
        out: TextIO,
        models: Sequence[str],
        phases: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`phases` returns what each model that is still loading does at the moment."""
        self._models = models or ["the server"]
        self._phases = phases
        self._started_s = time.monotonic()
        self._next_line_s = _LINE_EVERY_S
        self._spinner = _Spinner(out) if out.isatty() and not _is_dumb() else None

    def tick(self) -> None:
        """Called several times a second while models load."""
        elapsed_s = time.monotonic() - self._started_s
        if self._spinner is not None:
            self._spinner.show(f"loading {self._loading()}: {elapsed_s:.0f} s")
        elif elapsed_s >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            logger.info("loading %s: %.0f s", self._loading(), elapsed_s)

    def _loading(self) -> str:
        phases = self._phases() or dict.fromkeys(self._models, "")
        return ", ".join(
            f"{model} ({phase})" if phase else model for model, phase in phases.items()
        )

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
        address: ListenAddress,
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
        loading: Collection[str],
        tensor_models: Mapping[str, Mapping[str, Any]],
        keys: bool,
        unready: Mapping[str, str],
    ) -> str:
        text = ready(
            self._address,
            models,
            on_demand=on_demand,
            loading=loading,
            tensor_models=tensor_models,
            keys=keys,
            unready=unready,
            repositories=self._repositories,
        )
        sys.stdout.write(text)
        sys.stdout.flush()
        return status([*models, *tensor_models], unready)


def address(host: str, port: int) -> str:
    """The base URL for clients on this machine."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


_NO_KEY = ', api_key="none"'


def ready(  # noqa: PLR0913  each kind of model, and how to reach it
    place: ListenAddress,
    models: Mapping[str, Collection[str]],
    *,
    on_demand: Mapping[str, Collection[str]] = MappingProxyType({}),
    loading: Collection[str] = (),
    tensor_models: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    keys: bool = False,
    unready: Mapping[str, str] = MappingProxyType({}),
    repositories: Sequence[Path] = (),
) -> str:
    """The address, and a curl line and a Python line for each kind of request that a model serves.

    The lines work as they are; if the server needs a key, they read OPENAI_API_KEY. Only a model
    that needs a file needs the caller's, unless its folder has one named `example`.
    `models`: name -> capabilities as in `/v1/models`; `on_demand`: those that a request loads, and
    `loading`: those of them that load now; `tensor_models`: name -> metadata of those that only
    KServe's protocol serves. `unready`: name -> reason.
    """
    if not models and not on_demand and not tensor_models:
        reasons = "".join(f"  {name}: {reason}\n" for name, reason in sorted(unready.items()))
        return f"Listening on {place}, but no model can serve{':' if reasons else '.'}\n{reasons}"
    answered = list(request_examples.examples({**models, **on_demand}, repositories))
    shell = [example.curl(place, model, keys=keys) for example, model in answered]
    for model, metadata in list(tensor_models.items())[:1]:
        shell.append(request_examples.tensor_curl(place, model, metadata, keys=keys))
    unloaded = [name for name in on_demand if name not in loading]
    ready_line = _ready_line(place, models, loading, unloaded, tensor_models)
    if not shell:
        return f"{_filled(ready_line)}\n"
    examples_with = "Try it with a key in OPENAI_API_KEY" if keys else "Try it"
    lines = [_filled(f"{ready_line} {examples_with} from a shell:"), "", *shell, ""]
    if answered:
        client = place.client("" if keys else _NO_KEY)
        python = [*client, *(example.python(model) for example, model in answered)]
        lines += ["or from Python:", "", *python, ""]
    return "\n".join(lines)


def _filled(text: str) -> str:
    """Names and addresses stay whole."""
    return textwrap.fill(
        text, request_examples.COLUMNS, break_long_words=False, break_on_hyphens=False
    )


def _ready_line(
    place: ListenAddress,
    models: Collection[str],
    loading: Collection[str],
    unloaded: Collection[str],
    tensor_models: Collection[str],
) -> str:
    tensors = f"{_place(place, place.tensor_url)} with {', '.join(tensor_models)}"
    if tensor_models and not models and not loading and not unloaded:
        return f"Ready on {tensors}."
    served = ", ".join(models) if models else "no model loaded"
    beside = f", and on {tensors}" if tensor_models else ""
    now = f" Loading {', '.join(loading)}." if loading else ""
    later = f" The first request loads {', '.join(unloaded)}." if unloaded else ""
    return f"Ready on {place} with {served}{beside}.{now}{later}"


def _place(place: ListenAddress, url: str) -> str:
    """A Unix socket has one name for all paths."""
    return url if place.unix_socket is None else f"{place} (/v2)"


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
