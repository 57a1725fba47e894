"""Fields of /v1/classify, with a mock classifier whose scores depend on the prompt's tokens."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import GatewayProcess

honours = pytest.mark.honours
TEMPLATE = tiny_tokenizer.QWEN + "{{ flavour }}"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once upon a"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("classify")
    for name, labels in (("classes", ["no", "yes"]), ("others", ["a", "b", "c"])):
        version = mock_models.write(
            folder / "models", name, tokenizer="./tokenizer", tasks=["classify"], labels=labels
        )
        tiny_tokenizer.write(
            version / "tokenizer",
            chat_template=TEMPLATE,
            added_tokens=tiny_tokenizer.QWEN_TOKENS,
        )
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        with httpx.Client(base_url=process.url, timeout=120) as made:
            yield made


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json={"model": "classes", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(client: httpx.Client, **fields: Any) -> list[Any]:
    return [each["probs"] for each in post(client, "/v1/classify", **fields)["data"]]


@honours("classify.input")
def test_each_input_is_classified(client):
    one, other = (scores(client, input=text)[0] for text in ("one", "other"))

    assert one != other
    assert scores(client, input=["one", "other"]) == [one, other]


@honours("classify.model")
def test_model_decides_the_labels(client):
    assert [len(scores(client, model=name, input="a")[0]) for name in ("classes", "others")] == [
        2,
        3,
    ]


@pytest.mark.accepts("classify.user")
def test_user_changes_nothing(client):
    assert scores(client, input="a", user="u1") == scores(client, input="a")


@honours("classify.messages")
@pytest.mark.parametrize("ends", [{}, {"add_generation_prompt": True}])
def test_conversation_is_rendered(client, ends):
    tokens = post(client, "/tokenize", messages=CHAT, **{"add_generation_prompt": False, **ends})[
        "tokens"
    ]

    assert scores(client, messages=CHAT, **ends) == scores(client, input=[tokens])


@honours(
    "classify.add_generation_prompt",
    "classify.continue_final_message",
    "classify.chat_template_kwargs",
)
@pytest.mark.parametrize(
    "field",
    [
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"flavour": "sour"}},
    ],
)
def test_options_of_a_conversation_change_its_prompt(client, field):
    assert scores(client, messages=CHAT, **field) != scores(client, messages=CHAT)


@honours("classify.add_special_tokens")
def test_special_tokens_are_left_out(client):
    tokens = post(client, "/tokenize", prompt="one two", add_special_tokens=False)["tokens"]

    assert scores(client, input="one two", add_special_tokens=False) == scores(
        client, input=[tokens]
    )


@honours("classify.truncate_prompt_tokens", "classify.truncation_side")
def test_input_is_truncated_at_a_side(client):
    fields: dict[str, Any] = {"input": [[5, 6, 7]], "truncate_prompt_tokens": 2}

    assert scores(client, **fields) == scores(client, input=[[5, 6]])
    assert scores(client, **fields, truncation_side="left") == scores(client, input=[[6, 7]])
