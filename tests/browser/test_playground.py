"""The playground in a real browser."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from scripts.setup.clients import TOOLS
from scripts.setup.install import site_packages
from tests import audio, images
from tests.browser.chromium import HOSTILE
from tests.browser.conftest import KEY, opened
from tests.gateway_process import ROOT, GatewayProcess

VIEWS = ["Chat", "Vectors", "Audio", "Tensors", "Models", "Status"]


def send(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def wait_for_end(page: Any) -> None:
    page.wait_for_selector(".figures:not(:empty)")


def last_answer(page: Any) -> Any:
    return page.locator(".messages > .assistant").last


def test_three_clicks_to_an_answer_with_a_tool_call_and_a_schema(page):
    page.get_by_role("button", name="A tool and a schema").click()
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("button", name="Send the results").click()
    page.wait_for_selector(".check.met")

    assert json.loads(last_answer(page).locator(".text").last.text_content()) == {
        "city": "Bergen",
        "rainy": True,
    }


def test_reasoning_is_folded(page):
    send(page, "What is Triton?")
    wait_for_end(page)
    thought = last_answer(page).locator(".reasoning")

    assert thought.get_attribute("open") is None
    assert "Is it wet?" in thought.text_content()
    assert last_answer(page).locator("> .text").text_content() == "Triton serves models."


def test_texts_of_a_model_are_never_markup(page):
    """The opened page also fails the test if a script ran."""
    send(page, "hostile")
    wait_for_end(page)

    assert last_answer(page).locator("> .text").text_content() == HOSTILE
    assert page.locator("img, main script, main b").count() == 0


def running(gateway: GatewayProcess) -> float:
    text = httpx.get(f"{gateway.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "openai_frontend_requests_running"
    )


def stop_s(page: Any, gateway: GatewayProcess) -> float:
    """Seconds from a click on Stop until the model has ended."""
    send(page, "endless")
    page.locator(".assistant:last-child > .text:not(:empty)").wait_for()
    assert running(gateway) == 1
    page.evaluate(
        "[...document.querySelectorAll('button')].find(each => each.textContent === 'Stop').click()"
    )
    began_s = time.monotonic()
    while running(gateway):
        assert time.monotonic() < began_s + 30
    took_s = time.monotonic() - began_s
    page.wait_for_selector("text=ended by stopped")
    page.get_by_role("button", name="Clear").click()
    return took_s


def test_stop_ends_the_generation_of_the_server_within_100_ms(page, gateway):
    """The best of three: other programs may delay one."""
    assert min(stop_s(page, gateway) for _ in range(3)) < 0.1


def test_edit_returns_the_text_and_drops_the_turns_after_it(page):
    for text in ("first", "second"):
        send(page, text)
        page.get_by_role("button", name="Stop").and_(page.locator(":disabled")).wait_for()
    page.get_by_role("button", name="Edit").first.click()

    assert page.get_by_label("Message", exact=True).input_value() == "first"
    assert page.locator(".messages > li").count() == 0


def test_resend_repeats_a_turn(page):
    send(page, "What is Triton?")
    wait_for_end(page)
    page.get_by_role("button", name="Resend").click()
    wait_for_end(page)

    assert page.locator(".messages > li").count() == 2


def test_one_turn_by_three_apis(page):
    page.get_by_label("Compare").select_option("dialects")
    send(page, "What is Triton?")
    page.locator(".figures:not(:empty)").nth(2).wait_for()

    texts = page.locator(".assistant > .text").all_text_contents()
    thoughts = page.locator(".reasoning .text").all_text_contents()
    assert texts == ["Triton serves models."] * 3
    assert [each.strip() for each in thoughts] == ["Is it wet?"] * 3


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_tools_are_answered_in_each_api(page, api):
    page.get_by_label("API", exact=True).select_option(api)
    page.get_by_role("button", name="A tool and a schema").click()
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("button", name="Send the results").click()
    page.wait_for_selector(".check.met")

    assert "get_weather" in page.locator(".tool h3").text_content()


def test_two_models_side_by_side(page):
    page.get_by_label("Compare").select_option("model")
    page.get_by_label("Second model").select_option("plain")
    send(page, "What is Triton?")
    page.locator(".figures:not(:empty)").nth(1).wait_for()

    texts = page.locator(".assistant > .text").all_text_contents()
    assert texts == ["Triton serves models.", "Hello Hello Hello Hello "]


def open_tab(page: Any, name: str) -> Any:
    inside = last_answer(page).locator("details.inside")
    if inside.get_attribute("open") is None:
        inside.locator("> summary").click()
    inside.get_by_role("tab", name=name).click()
    return inside.get_by_role("tabpanel").first


def test_wire_has_the_request_and_every_event_with_its_time(page):
    send(page, "What is Triton?")
    wait_for_end(page)
    events = open_tab(page, "Wire").locator(".events li").all_text_contents()
    times = [float(each.partition(" ms")[0]) for each in events]

    assert events[-1].endswith("data: [DONE]")
    assert times == sorted(times)


def test_tokens_have_alternatives(page):
    send(page, "What is Triton?")
    wait_for_end(page)
    panel = open_tab(page, "Tokens")
    panel.locator(".token").last.click()

    assert panel.locator("tbody tr").count() == 5


def test_prompt_is_what_the_template_rendered(page):
    send(page, "What is Triton?")
    wait_for_end(page)
    panel = open_tab(page, "Prompt")
    panel.locator("pre").first.wait_for()

    assert (
        "<|im_start|>user\nWhat is Triton?<|im_end|>" in panel.locator("pre").first.text_content()
    )


COMMANDS = {
    "curl": ["bash", "-c"],
    "Python": [sys.executable, "-c"],
    "JavaScript": [
        str(ROOT / site_packages(TOOLS / "browser") / "playwright" / "driver" / "node"),
        "--input-type=module", "-e",
    ],
}  # fmt: skip


def run_codes(panel: Any) -> dict[str, str]:
    """Language -> what its code prints."""
    outputs = {}
    for language, command in COMMANDS.items():
        panel.get_by_role("tab", name=language).click()
        code = panel.locator("pre").text_content()
        environment = {**os.environ, "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            [*command, code], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs[language] = done.stdout
    return outputs


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_code_runs_as_it_is_shown(page, api):
    """With a schema, a tool and an apostrophe."""
    page.get_by_label("API", exact=True).select_option(api)
    page.get_by_role("button", name="A tool and a schema").click()
    page.get_by_label("Tool choice").select_option("auto")
    send(page, "What's Triton?")
    wait_for_end(page)
    panel = open_tab(page, "Code")
    outputs = run_codes(panel)

    assert outputs["Python"] == "Triton serves models."
    end = "message_stop" if api == "messages" else "[DONE]"
    assert end in outputs["curl"]
    assert end in outputs["JavaScript"]


def test_constraint_is_checked_while_it_is_written(page):
    """By the page for JSON, and by the server for what it accepts."""
    page.get_by_label("Answer", exact=True).select_option("schema")
    page.get_by_text("The server accepts these.").wait_for()
    page.get_by_label("Constraint").fill("{")
    page.get_by_text("Constraint: ").wait_for()


def test_refused_constraint_shows_the_servers_reason(browser, gateway):
    with opened(browser, gateway.url, statuses=(400,)) as page:
        page.get_by_label("Answer", exact=True).select_option("schema")
        page.get_by_label("Constraint").fill('{"type": "nonsense"}')
        page.get_by_text("The server refuses these. 400").wait_for()

        assert page.get_by_text("The server accepts these.").count() == 0


def test_failed_request_shows_the_servers_message(browser, gateway):
    with opened(browser, gateway.url, statuses=(400,)) as page:
        page.get_by_text("Sampling").click()
        page.get_by_label("Maximum tokens").fill("999999")
        page.get_by_label("Model", exact=True).select_option("plain")
        send(page, "hi")

        assert "400" in page.locator(".messages [role=alert]").text_content()


def test_models_show_their_state_and_why_one_did_not_load(page):
    page.get_by_role("link", name="Models").click()
    page.get_by_text("the weights are missing").wait_for()
    card = page.locator(".card", has_text="plain").first

    assert card.locator(".state").text_content() == "loaded"
    assert "4,096 tokens" in card.text_content()


def test_models_are_unloaded_and_loaded(page):
    """The conversation of another view stays."""
    send(page, "What is Triton?")
    wait_for_end(page)
    page.get_by_role("link", name="Models").click()
    plain = page.locator(".card", has=page.get_by_role("heading", name="plain"))
    plain.get_by_role("button", name="unload").click()
    plain.wait_for(state="detached")
    page.get_by_role("button", name="load plain").click()
    plain.wait_for()
    page.get_by_role("link", name="Chat").click()

    assert last_answer(page).locator("> .text").text_content() == "Triton serves models."


def open_view(page: Any, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()


def run_task(page: Any, name: str) -> Any:
    card = page.get_by_role("region", name=name, exact=True)
    card.get_by_role("button", name="Run", exact=True).click()
    card.locator(".figures").wait_for()
    return card


def test_a_model_sleeps_and_wakes_by_keyboard(page):
    """The focus stays at the model, and its state is announced."""
    open_view(page, "Models")
    plain = page.locator(".card", has=page.get_by_role("heading", name="plain"))
    states = []
    for action in ("sleep", "wake"):
        plain.get_by_role("button", name=action, exact=True).wait_for()
        tab_to_button(page, action, of="plain")
        page.keyboard.press("Enter")
        page.get_by_text(f"plain: {action} done.").wait_for()
        states.append(plain.locator(".state").text_content())
        assert page.evaluate(_FOCUSED) == "plain"

    assert states == ["sleeping", "loaded"]


def test_attached_images_and_audio_reach_the_model(page, tmp_path):
    """A removed one does not."""
    page.get_by_label("Model", exact=True).select_option("sees")
    files = {
        "shown.png": images.png(4, 5),
        "removed.png": images.png(),
        "heard.wav": audio.wav(["one"]),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    page.get_by_label("Images and audio", exact=True).set_input_files(
        [tmp_path / name for name in files]
    )
    page.get_by_role("button", name="Remove removed.png").click()
    send(page, "What is it?")
    wait_for_end(page)

    answer = last_answer(page).locator("> .text").text_content()
    assert re.fullmatch(r"png 4x5 auto \w{8}; wav \d+ \w{8}", answer.strip()), answer
    assert page.get_by_role("img", name="Attached image 1").is_visible()
    assert page.locator(".attached li").count() == 0


def test_embeddings_are_compared_in_a_table(page):
    """A text is equal to itself, and the table is symmetric."""
    open_view(page, "Vectors")
    rows = run_task(page, "Embeddings").locator("tbody tr").all()
    table = [[float(each) for each in row.locator("td").all_text_contents()] for row in rows]

    assert [table[at][at] for at in range(3)] == [1.0] * 3
    assert table == [list(column) for column in zip(*table, strict=True)]


def test_documents_are_ranked(page, gateway):
    """As the API ranks them."""
    open_view(page, "Vectors")
    card = run_task(page, "Rerank")
    body = {
        "model": card.get_by_label("Model").input_value(),
        "query": card.get_by_label("Query").input_value(),
        "documents": card.get_by_label("Documents, one per line").input_value().split("\n"),
    }
    results = httpx.post(f"{gateway.url}/v1/rerank", json=body).json()["results"]

    shown = card.locator("tbody th").all_text_contents()
    assert shown == [body["documents"][each["index"]] for each in results]


def test_texts_are_classified(page):
    """Each with the label of the highest score."""
    open_view(page, "Vectors")
    card = page.get_by_role("region", name="Classify", exact=True)
    card.get_by_label("Texts, one per line").fill("good good bad odd\nbad")
    rows = run_task(page, "Classify").locator("tbody tr").all()

    assert [row.locator("th, td").all_text_contents() for row in rows] == [
        ["good good bad odd", "good", "0.5000"],
        ["bad", "bad", "1.0000"],
    ]


def test_texts_are_moderated(page):
    """Each with the category of the highest score."""
    open_view(page, "Vectors")
    card = page.get_by_role("region", name="Moderate", exact=True)
    card.get_by_label("Texts, one per line").fill("good good good bad\nodd bad odd")
    rows = run_task(page, "Moderate").locator("tbody tr").all()

    assert [row.locator("th, td").all_text_contents() for row in rows] == [
        ["good good good bad", "no", "hate", "0.2500"],
        ["odd bad odd", "yes", "violence", "0.6667"],
    ]


@pytest.mark.parametrize("task", ["Embeddings", "Rerank", "Classify", "Moderate"])
def test_code_of_vectors_runs_as_it_is_shown(page, task):
    """Each language prints what the server answers."""
    open_view(page, "Vectors")
    page.get_by_role("region", name=task, exact=True).wait_for()
    card = run_task(page, task)
    card.get_by_text("Code", exact=True).click()
    outputs = run_codes(card)

    part = {
        "Embeddings": "embedding",
        "Rerank": "relevance_score",
        "Classify": "probs",
        "Moderate": "category_scores",
    }[task]
    if task == "Embeddings":
        vectors = [json.loads(line) for line in outputs["Python"].splitlines()]
        curl = [each["embedding"] for each in json.loads(outputs["curl"])["data"]]
        assert vectors == [pytest.approx(each, rel=1e-5) for each in curl]
        assert len(vectors) == 3
    else:
        assert part in outputs["Python"]
    assert part in outputs["curl"]
    assert part in outputs["JavaScript"]


def test_a_file_is_transcribed(page, tmp_path):
    file = tmp_path / "speech.wav"
    file.write_bytes(audio.wav(["one", "two"]))
    open_view(page, "Audio")
    card = page.get_by_role("region", name="Transcription")
    card.get_by_label("File").set_input_files(file)
    run_task(page, "Transcription")

    assert card.locator(".text").text_content().strip() == "token token"


def test_the_microphone_is_recorded_and_transcribed(browser, gateway):
    """Chromium's own test tone, as a WAV file of 16 kHz."""
    with opened(browser, gateway.url, permissions=["microphone"]) as page:
        open_view(page, "Audio")
        page.get_by_role("button", name="Record").click()
        page.get_by_role("button", name="Stop recording").wait_for()
        time.sleep(0.5)  # of sound
        page.get_by_role("button", name="Stop recording").click()
        page.get_by_text("Recorded").wait_for()
        card = run_task(page, "Transcription")

        assert card.locator(".text").text_content()


def test_tensors_of_any_model(page):
    """The inputs of the form come from the model's metadata."""
    open_view(page, "Tensors")
    page.get_by_label("Model in Triton").select_option("echo")
    page.get_by_label("Data, as JSON").fill('["one", "two"]')
    page.get_by_label("Shape").fill("[2]")
    page.get_by_role("button", name="Infer").click()

    assert json.loads(page.locator("[aria-live] pre").text_content()) == ["one", "two"]


def test_responses_of_a_decoupled_model(page):
    """A stream of them."""
    open_view(page, "Tensors")
    page.get_by_label("Model in Triton").select_option("plain")
    page.get_by_label("Data, as JSON").first.fill('["hi"]')
    page.get_by_role("button", name="Infer").click()
    page.locator(".figures").wait_for()

    lines = page.locator("[aria-live] pre").text_content().splitlines()
    texts = [json.loads(each)["text_output"] for each in lines]
    assert "".join(texts) == "Hello Hello Hello Hello "


def test_status_shows_the_metrics_of_the_last_minutes(page, gateway):
    """Running requests and tokens per second by model; a plot has a line for each."""
    send(page, "endless")
    page.locator(".assistant:last-child > .text:not(:empty)").wait_for()
    open_view(page, "Status")
    running = page.get_by_role("region", name="Requests running", exact=True)
    tokens = page.get_by_role("region", name="Output tokens per second", exact=True)
    running.locator("tr", has_text="talker").locator("td", has_text="1").wait_for()
    tokens.locator("tr", has_text="talker").locator("td:not(:text-is('0'))").wait_for()
    first = page.get_by_role("region", name="Time to first token", exact=True)

    assert tokens.locator("path").count() >= 1
    assert first.locator("tr").count() == 4
    open_view(page, "Chat")
    page.get_by_role("button", name="Stop").click()


def test_status_asks_the_server_only_while_it_is_shown(page):
    open_view(page, "Status")
    with page.expect_response("**/metrics"):
        pass
    open_view(page, "Chat")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    time.sleep(3)  # longer than its interval

    assert [url for url in asked if url.endswith("/metrics")] == []


def test_page_asks_for_the_key_and_keeps_it_in_the_tab_only(browser, guarded):
    with opened(browser, guarded.url, statuses=(401,)) as page:
        for key in ("sk-wrong", KEY):
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Use the key").click()
            if key != KEY:
                page.get_by_text("401").wait_for()
        page.get_by_label("Model", exact=True).select_option("talker")
        send(page, "What is Triton?")
        wait_for_end(page)
        page.goto(f"{guarded.url}/docs")
        page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()

        assert page.evaluate("localStorage.length") == 0
        assert page.context.cookies() == []
        page.goto(f"{guarded.url}/")
        page.get_by_role("button", name="Forget the key").click()
        page.get_by_label("API key").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_documentation_asks_for_the_key(browser, guarded):
    with opened(browser, guarded.url, statuses=(401,)) as page:
        page.goto(f"{guarded.url}/docs")
        for key in ("sk-wrong", KEY):
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Show the documentation").click()
            if key != KEY:
                page.get_by_text("refused the key").wait_for()
        page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()

        assert not page.get_by_label("API key").is_visible()
        assert page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize("path", ["", "/", "?from=link"])
def test_page_works_below_a_path_that_a_proxy_strips(browser, below_a_path, path):
    """With and without the slash, where nothing may leave the path: each view, a chat, its code."""
    with opened(browser, below_a_path, path=path) as page:
        page.get_by_label("Model", exact=True).select_option("talker")
        send(page, "What is Triton?")
        wait_for_end(page)
        code = open_tab(page, "Code").locator("pre").text_content()
        for view in VIEWS:
            page.get_by_role("link", name=view, exact=True).click()
            page.wait_for_load_state("networkidle")
        page.get_by_role("link", name="API reference").click()
        page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()

        assert f"'{below_a_path}/v1/chat/completions'" in code
        assert page.url == f"{below_a_path}/docs"


# The focused element: its text, or its label
_FOCUSED = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()"


def tab_to_button(page: Any, name: str, *, of: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "[document.activeElement.textContent, document.activeElement.ariaDescription]"
        )
        if focused == [name, of]:
            return
    raise AssertionError(f"the Tab key does not reach {name!r} of {of!r}")


def tab_to(page: Any, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(_FOCUSED) == name:
            return
    raise AssertionError(f"the Tab key does not reach {name!r}")


def test_chat_by_keyboard_alone(page):
    """An example, its tool call and its result; then the tabs inside."""
    page.evaluate("document.activeElement.blur()")
    tab_to(page, "A tool and a schema")
    page.keyboard.press("Enter")
    assert page.evaluate(_FOCUSED) == "Send"
    page.keyboard.press("Enter")
    page.locator("button:focus", has_text="Send the results").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector(".check.met")
    tab_to(page, "Inside: wire, tokens, prompt, code")
    page.keyboard.press("Enter")
    tab_to(page, "Wire")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(_FOCUSED) == "Tokens"
    tab_to(page, "Message")
    page.keyboard.type("What is Triton?")
    page.keyboard.press("Enter")
    page.locator(".user").nth(1).wait_for()


@pytest.mark.parametrize("view", VIEWS)
def test_tab_key_reaches_every_control(page, view):
    page.get_by_role("link", name=view, exact=True).click()
    page.wait_for_load_state("networkidle")
    controls = "a, button, input, select, textarea, summary, [tabindex='0']"
    count = page.evaluate(
        "selector => { const found = [...document.querySelectorAll(selector)].filter("
        "each => each.checkVisibility() && !each.disabled && each.tabIndex >= 0);"
        "found.forEach(each => each.dataset.unseen = ''); return found.length; }",
        controls,
    )
    page.evaluate("document.activeElement.blur()")
    for _ in range(count + 5):
        page.keyboard.press("Tab")
        page.evaluate("delete document.activeElement.dataset.unseen")

    unseen = page.locator("[data-unseen]")
    assert [each.evaluate("each => each.outerHTML") for each in unseen.all()] == []


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}


@pytest.mark.parametrize(("view", "look"), [*itertools.product(VIEWS, LOOKS)])
def test_axe_finds_no_violation(browser, gateway, view, look):
    """Also nothing is wider than the screen."""
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, gateway.url, bypass_csp=True, **LOOKS[look]) as page:
        if view == "Chat":
            page.get_by_label("Model", exact=True).select_option("talker")
            page.get_by_role("button", name="A tool and a schema").click()
            page.get_by_role("button", name="Send", exact=True).click()
            page.get_by_role("button", name="Send the results").click()
            page.wait_for_selector(".check.met")
            open_tab(page, "Tokens")
        page.get_by_role("link", name=view, exact=True).click()
        page.wait_for_load_state("networkidle")
        found = Axe().run(page).response["violations"]

        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(width) == 0


def test_axe_finds_no_violation_in_the_question_for_the_key(browser, guarded):
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, guarded.url, statuses=(401,), bypass_csp=True) as page:
        page.get_by_label("API key").wait_for()

        assert Axe().run(page).response["violations"] == []


def test_browser_is_the_one_that_setup_unpacked(browser):
    """Playwright drives versions of Chromium that it was not made for."""
    assert int(browser.version.split(".")[0]) >= 140
    assert Path(ROOT / TOOLS / "browser").is_dir()
