"""The field `moderation` of chats, with OpenAI's client: a guard may block prompts and outputs."""

import shutil
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.slow  # the guard is a process

GUARD = "demo-classifier"
GOOD, BAD, MORE = "The weather is nice. ", "You are an idiot. ", "We go home."
HARMLESS, THREAT = "How are you?", "I will stab your brother."
MARKED = {
    "thinks": f"<think>Hm. {BAD}{GOOD}</think>Yes",
    "calls": (
        '<tool_call>\n{"name": "say", "arguments": {"text": "You are an idiot. "}}\n</tool_call>'
    ),
    "begins_with_arguments": (
        '<tool_call>\n{"arguments": {"text": "You are an idiot. "}, "name": "say"}\n</tool_call>'
    ),
}
NO_GUARD = "load_on_demand: true\nmoderation: {labels: {insult: hate}, fail_open: %s}\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    models = folder / "models"
    shutil.copytree(ROOT / "model_repository" / GUARD, models / GUARD)
    for name, said in (("rude", [GOOD, BAD, MORE]), ("kind", [GOOD, MORE])):
        tokens = [piece for each in said for piece in _pieces(each)]
        mock_models.write_with_tokenizer(models, name, tokens=tokens, answer_tokens=len(tokens))
    for name, marked in MARKED.items():
        # Characters, of which the parser withholds those that may begin a marker
        version = mock_models.write(
            models, name, tokenizer="./tokenizer", tokens=[*marked], answer_tokens=len(marked)
        )
        tiny_tokenizer.write(
            version / "tokenizer",
            chat_template=tiny_tokenizer.QWEN,
            added_tokens=tiny_tokenizer.QWEN_TOKENS,
        )
    for name, fails_open in (("closed", "false"), ("open", "true")):
        shutil.copytree(ROOT / "model_repository" / GUARD, models / name)
        (models / name / "1" / "weights.npz").unlink()  # it cannot be loaded
        (models / name / "openai_frontend.yaml").write_text(NO_GUARD % fails_open)
    plain: dict[str, Any] = {"tasks": ["classify"], "labels": ["a", "b"]}
    mock_models.write_with_tokenizer(models, "plain", **plain)
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as process:
        process.wait_until_ready()
        _wait_for_guard(process)
        yield process


def _wait_for_guard(gateway: GatewayProcess) -> None:
    """On a busy machine, Triton may find the new process too slow, and it is restarted once."""
    end_s = time.monotonic() + 120
    asked = {"model": GUARD, "input": HARMLESS}
    while httpx.post(f"{gateway.url}/v1/moderations", json=asked, timeout=120).status_code != 200:
        assert time.monotonic() < end_s, gateway.output()
        time.sleep(0.2)


def _pieces(text: str) -> list[str]:
    """A few characters each, which end within words."""
    return [text[at : at + 5] for at in range(0, len(text), 5)]


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


def fields(
    model: str = "rude", prompt: str = HARMLESS, guard: str = GUARD, **modes: str
) -> dict[str, Any]:
    policy = {stage: {"mode": mode} for stage, mode in modes.items()}
    moderation = {"model": guard, **({"policy": policy} if policy else {})}
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "moderation": moderation}


def streamed(client: openai.OpenAI, **asked: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Texts and finish reasons by choice, and the moderation."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    found = []
    for chunk in client.chat.completions.create(stream=True, **asked):
        if chunk.moderation is not None:
            assert chunk.choices == []
            found.append(chunk.moderation)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    [moderation] = found
    return texts, ends, moderation


def whole(client: openai.OpenAI, **asked: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    answer = client.chat.completions.create(**asked)
    texts = {each.index: each.message.content or "" for each in answer.choices}
    return texts, {each.index: each.finish_reason for each in answer.choices}, answer.moderation


BOTH = pytest.mark.parametrize("ask", [streamed, whole])


@pytest.mark.honours(
    "chat.moderation",
    "chat.moderation.model",
    "chat.moderation.policy",
    "chat.moderation.policy.output",
    "chat.moderation.policy.output.mode",
)
@BOTH
def test_flagged_sentence_is_not_sent(client, ask):
    texts, ends, moderation = ask(client, **fields(output="block"))

    assert (texts, ends) == ({0: GOOD}, {0: "content_filter"})
    [result] = moderation.output.results
    assert result.flagged
    assert result.categories["harassment"]
    assert not moderation.input.results[0].flagged


@BOTH
@pytest.mark.parametrize("modes", [{}, {"output": "score"}])
def test_score_only_reports(client, ask, modes):
    texts, ends, moderation = ask(client, **fields(**modes))

    assert (texts, ends) == ({0: GOOD + BAD + MORE}, {0: "stop"})
    assert [each.flagged for each in moderation.output.results] == [True]
    assert moderation.output.model == GUARD


@BOTH
def test_harmless_output_passes_whole(client, ask):
    texts, ends, moderation = ask(client, **fields("kind", input="block", output="block"))

    assert (texts, ends) == ({0: GOOD + MORE}, {0: "stop"})
    assert not moderation.output.results[0].flagged


@pytest.mark.honours("chat.moderation.policy.input", "chat.moderation.policy.input.mode")
@BOTH
def test_flagged_prompt_is_not_run(gateway, client, ask):
    """The model never sees it."""

    def requests() -> float:
        lines = httpx.get(f"{gateway.url}/metrics", timeout=60).text.splitlines()
        found = [x for x in lines if x.startswith("nv_inference_request_success{")]
        return sum(float(line.split()[-1]) for line in found if 'model="rude"' in line)

    before = requests()
    texts, ends, moderation = ask(client, **fields(prompt=THREAT, input="block"))

    assert (set(texts.values()) | {""}, ends) == ({""}, {0: "content_filter"})
    assert moderation.input.results[0].categories["violence"]
    assert moderation.output.results == []
    assert requests() == before


@BOTH
def test_each_choice_is_guarded(client, ask):
    texts, ends, moderation = ask(client, **fields(output="block"), n=3)

    assert texts == dict.fromkeys(range(3), GOOD)
    assert ends == dict.fromkeys(range(3), "content_filter")
    assert len(moderation.output.results) == 3


def test_log_probabilities_of_a_guarded_output(client):
    """In mode `score`, each token is reported once. In mode `block`, they would show a text that
    the guard has not seen.
    """
    asked: Any = {"logprobs": True, "top_logprobs": 1}
    answer = client.chat.completions.create(**fields("kind"), **asked)
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)

    for field in (asked, {"extra_body": {"return_token_ids": True}}):
        with pytest.raises(openai.BadRequestError, match=r"output\.mode 'block'"):
            client.chat.completions.create(**fields("kind", output="block"), **field)


TOOLS: Any = [{"type": "function", "function": {"name": "say", "parameters": {"type": "object"}}}]


@BOTH
@pytest.mark.parametrize("model", MARKED)
def test_reasoning_and_arguments_are_blocked_before_they_are_sent(gateway, ask, model):
    """However many characters the parser withholds."""
    body = {**fields(model, output="block"), "tools": TOOLS, "stream": ask is streamed}

    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)

    assert answer.status_code == 200
    assert "idiot" not in answer.text
    assert "content_filter" in answer.text


def test_long_text_without_an_end_is_seen(client):
    """In pieces, not refused: the guard has a limit on texts."""
    asked = fields("kind", prompt="." * 3000 + THREAT, input="block")

    assert whole(client, **asked)[1] == {0: "content_filter"}


CALL = {"name": "f", "arguments": THREAT}


@pytest.mark.parametrize(
    "calls",
    [{"tool_calls": [{"id": "c", "type": "function", "function": CALL}]}, {"function_call": CALL}],
)
def test_arguments_of_earlier_calls_are_part_of_the_prompt(client, calls):
    asked = fields(input="block")
    asked["messages"] += [
        {"role": "assistant", **calls},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]

    assert whole(client, **asked)[1] == {0: "content_filter"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "x"}),
        ("embeddings", {"input": "x"}),
        ("classify", {"input": "x"}),
        ("moderations", {"input": "x"}),
        ("pooling", {"input": "x"}),
        ("rerank", {"query": "x", "documents": ["x"]}),
        ("score", {"text_1": "x", "text_2": "x"}),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("responses", {"input": "x"}),
        (
            "decisions",
            {"input": "x", "questions": [{"type": "predicate", "instructions": "Yes?"}]},
        ),
    ],
)
def test_other_apis_do_not_ignore_a_guard(gateway, path, body):
    asked = {"model": "kind", "moderation": {"model": GUARD}, **body}

    answer = httpx.post(f"{gateway.url}/v1/{path}", json=asked, timeout=60)

    assert answer.status_code == 400
    assert "moderation" in answer.json()["error"]["message"]


def test_usage_follows_the_moderation(client):
    options: Any = {"stream_options": {"include_usage": True}}
    *_, moderation, usage = client.chat.completions.create(
        **fields(output="block"), **options, stream=True
    )

    assert moderation.moderation.output.results[0].flagged
    assert moderation.usage is None
    assert usage.usage.completion_tokens > 0


@BOTH
@pytest.mark.parametrize("stage", ["input", "output"])
def test_guard_that_fails_closed_fails_the_chat(client, ask, stage):
    with pytest.raises(openai.APIError) as failed:
        ask(client, **fields(guard="closed", **{stage: "block"}))

    assert f"The moderation model 'closed' cannot check the {stage} now." in failed.value.message


@BOTH
@pytest.mark.parametrize("guard", ["open", "closed"])
def test_chat_without_its_guard_says_so(gateway, client, ask, guard):
    """The guard fails open, or was only to report scores. The metrics count it."""
    modes = {"input": "block", "output": "block"} if guard == "open" else {}
    texts, _, moderation = ask(client, **fields(guard=guard, **modes))

    assert texts == {0: GOOD + BAD + MORE}
    for outcome in (moderation.input, moderation.output):
        assert (outcome.type, outcome.code) == ("error", "model_unavailable")
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    assert 'openai_frontend_guard_checks_total{model="",result="failed",stage="input"}' in metrics


REFUSED: dict[str, tuple[Any, int, str]] = {
    "unknown": ({"model": "nobody"}, 404, "moderation.model"),
    "itself": ({"model": "rude"}, 400, "moderation.model"),
    "no mapping": ({"model": "plain"}, 400, "moderation.model"),
    "no model": ({}, 400, "moderation.model"),
    "a text": ("omni", 400, "moderation"),
    "empty": ({"model": ""}, 400, "moderation.model"),
    "misspelt": ({"model": GUARD, "polcy": {}}, 400, "moderation.polcy"),
    "misspelt stage": ({"model": GUARD, "policy": {"outputs": {}}}, 400, "policy.outputs"),
    "misspelt mode": (
        {"model": GUARD, "policy": {"input": {"mode": "block", "x": 1}}},
        400,
        "policy.input.x",
    ),
    "mode": ({"model": GUARD, "policy": {"input": {"mode": "drop"}}}, 400, "policy.input.mode"),
    "no mode": ({"model": GUARD, "policy": {"output": {}}}, 400, "policy.output.mode"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_guards_are_refused_by_name(gateway, case):
    moderation, status, param = REFUSED[case]
    body = {**fields(), "moderation": moderation}

    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (
        status,
        param if param.startswith("moderation") else f"moderation.{param}",
    )
    assert "'model'" not in error["message"]
