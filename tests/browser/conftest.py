"""Gateways with scripted models, and a browser whose pages must not fail anywhere."""

import os
import site
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.setup.clients import CHROMIUM, TOOLS
from scripts.setup.install import site_packages
from tests import mock_models
from tests.gateway_process import ROOT, GatewayProcess

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> &amp; <b>bold</b>\x00\u202e"
KEY = "sk-browser"
REASONING = "<think>\nIs it wet?\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
TURNS: list[dict[str, Any]] = [
    {"contains": "hostile", "text": HOSTILE},
    {"contains": "rainy", "after": 0, "text": CALL},
    {"contains": "rainy", "text": '{"city": "Bergen", "rainy": true}'},
    {"contains": "endless", "text": "word " * 20_000},
    {"text": f"{REASONING}Triton serves models."},
]


def serve(folder: Path, *options: str) -> GatewayProcess:
    """`talker` has tools and reasoning, `plain` no tools, and `broken` does not load."""
    repository = folder / "models"
    repository.mkdir()
    mock_models.write_with_turns(repository, "talker", TURNS, tokens_per_second=300)
    mock_models.write_with_tokenizer(repository, "plain", tokens=["Hel", "lo "], answer_tokens=8)
    mock_models.write(repository, "broken", fail_at_load="the weights are missing")
    explicit = ("--model-control-mode=explicit", "--load-model=*", "--enable-model-management")
    return GatewayProcess(repository, folder / "log", *explicit, *options)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with serve(tmp_path_factory.mktemp("open")) as process:
        process.wait_for_line("Ready on")
        yield process


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with serve(tmp_path_factory.mktemp("guarded"), f"--api-key={KEY}") as process:
        process.wait_for_line("Ready on")
        yield process


def executable() -> Path:
    """Fails if `make setup-browser` did not run."""
    return next((ROOT / CHROMIUM).glob("usr/lib/*/chromium-headless-shell"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    site.addsitedir(str(ROOT / site_packages(TOOLS / "browser")))
    from playwright.sync_api import sync_playwright

    libraries = {str(path.parent) for path in (ROOT / CHROMIUM).rglob("*.so*")}
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox"], env=environment
        )
        yield launched
        launched.close()


# Any violation of the policy becomes an error of the console.
_REPORT = """
addEventListener("securitypolicyviolation", event =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def opened(
    browser: Any, url: str, *, statuses: tuple[int, ...] = (), **options: Any
) -> Iterator[Any]:
    """A page that must log no error, throw none, ask no other host and show no dialog.

    `statuses`: of requests that the test itself makes fail.
    """
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    context.add_init_script(_REPORT)
    page = context.new_page()
    faults: list[str] = []
    expected = tuple(f"status of {status}" for status in statuses)

    def note(kind: str, text: str) -> None:
        if not any(each in text for each in expected):
            faults.append(f"{kind}: {text}")

    page.on("console", lambda line: line.type in ("error", "warning") and note("log", line.text))
    page.on("pageerror", lambda error: note("exception", str(error)))
    page.on("dialog", lambda dialog: (note("dialog", dialog.message), dialog.dismiss()))
    page.on(
        "request", lambda request: _is_elsewhere(request.url, url) and note("host", request.url)
    )
    page.goto(f"{url}/")
    yield page
    context.close()
    assert faults == []


def _is_elsewhere(requested: str, url: str) -> bool:
    return not requested.startswith((f"{url}/", "data:", "blob:"))


@pytest.fixture
def page(browser: Any, gateway: GatewayProcess) -> Iterator[Any]:
    """The chat with the model `talker`."""
    with opened(browser, gateway.url) as made:
        made.get_by_label("Model", exact=True).select_option("talker")
        yield made
