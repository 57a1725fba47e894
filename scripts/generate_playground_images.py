"""Takes docs/images/playground-*.png: the playground with scripted models, light, dark, narrow.

Needs `make setup-browser`; takes a minute.
"""

import io
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser.chromium import launched, serve
from tests.gateway_process import ROOT

FOLDER = ROOT / "docs" / "images"
COLOURS = 64  # a third of the bytes, and texts look the same


def chat(page: Any) -> None:
    """A tool call, its result and the answer's tokens."""
    page.get_by_label("Model", exact=True).select_option("talker")
    page.get_by_role("button", name="A tool and a schema").click()
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("button", name="Send the results").click()
    page.wait_for_selector(".check.met")
    page.get_by_text("Inside:").last.click()
    page.get_by_role("tab", name="Tokens").click()


# More chats than one in each second, of different lengths
LOAD = """
let sent = 0;
setInterval(() => fetch("v1/chat/completions", {
  method: "POST", headers: { "content-type": "application/json" },
  body: JSON.stringify({
    model: sent++ % 3 ? "talker" : "plain", stream: true,
    max_tokens: 50 + 150 * (sent % 7), messages: [{ role: "user", content: "endless" }],
  }),
}).then(response => response.text()), 400);
"""


def status(page: Any) -> None:
    """A minute of chats."""
    page.evaluate(LOAD)
    page.get_by_role("link", name="Status", exact=True).click()
    page.wait_for_timeout(60_000)


WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
SHOTS: Mapping[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "light": (chat, {"viewport": WIDE}),
    "narrow": (chat, {"viewport": NARROW}),
    "dark": (status, {"viewport": WIDE, "color_scheme": "dark"}),
}


def main() -> None:
    folder = tempfile.TemporaryDirectory()
    with folder, serve(Path(folder.name)) as gateway, launched() as browser:
        gateway.wait_for_line("Ready on")
        for name, (prepare, options) in SHOTS.items():
            context = browser.new_context(**options)
            page = context.new_page()
            page.goto(f"{gateway.url}/")
            prepare(page)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)
            shot.save(FOLDER / f"playground-{name}.png", optimize=True)
            context.close()


if __name__ == "__main__":
    main()
