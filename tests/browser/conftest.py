"""Gateways with scripted models, and a browser whose pages must not fail anywhere."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser.chromium import launched, serve
from tests.browser.prefix_proxy import proxied
from tests.gateway_process import GatewayProcess

KEY = "sk-browser"
ROOT_PATH = "/team/llm"


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


@pytest.fixture(scope="session")
def below_a_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway behind a proxy that strips its root path."""
    with serve(tmp_path_factory.mktemp("below"), f"--root-path={ROOT_PATH}") as process:
        process.wait_for_line("Ready on")
        with proxied(process.port, ROOT_PATH) as url:
            yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


# Any violation of the policy becomes an error of the console.
_REPORT = """
addEventListener("securitypolicyviolation", event =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def opened(
    browser: Any, url: str, *, path: str = "/", statuses: tuple[int, ...] = (), **options: Any
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
    page.goto(f"{url}{path}")
    yield page
    context.close()
    assert faults == []


def _is_elsewhere(requested: str, url: str) -> bool:
    return re.match(rf"{re.escape(url)}([/?]|$)|data:|blob:", requested) is None


@pytest.fixture
def page(browser: Any, gateway: GatewayProcess) -> Iterator[Any]:
    """The chat with the model `talker`."""
    with opened(browser, gateway.url) as made:
        made.get_by_label("Model", exact=True).select_option("talker")
        yield made
