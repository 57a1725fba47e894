"""Images reach models with the tensors of NVIDIA's, through the real core, and only as data."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import images
from tests.api.backends import repository
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow  # the models are processes

PNG, GIF = images.png()[:4].hex(), images.gif()[:4].hex()
QUESTION = [images.text("a"), images.part(images.png()), images.text("b")]
TWO = [*QUESTION, images.part(images.gif())]
RENDERED = "<|im_start|>user\na<|vision|><image>b<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("vision")
    models = repository.write_vision(folder / "models", folder / "weights")
    backends = repository.write_vllm_backend(folder / "backends", "vision")
    options = [
        f"--backend-directory={backends}",
        "--backend-config=python:stub-timeout-seconds=600",
    ]
    with GatewayProcess(models, folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


def ask(gateway: GatewayProcess, model: str, content: Any, **more: Any) -> httpx.Response:
    messages = more.pop("messages", [{"role": "user", "content": content}])
    fields = {"model": model, "messages": messages, "max_tokens": 9, **more}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=fields, timeout=60)


def told(gateway: GatewayProcess, model: str, content: Any, **more: Any) -> dict[str, Any]:
    """What the model got."""
    response = ask(gateway, model, content, **more)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = json.loads(response.json()["choices"][0]["message"]["content"])
    return found


def refused(gateway: GatewayProcess, model: str, content: Any, **more: Any) -> tuple[str, str]:
    response = ask(gateway, model, content, **more)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def test_nvidias_vllm_gets_base64_and_the_rendered_prompt(gateway):
    assert told(gateway, "nvidia_vllm", QUESTION) == {"prompt": RENDERED, "image": [PNG]}
    assert told(gateway, "nvidia_vllm", TWO)["image"] == [PNG, GIF]


def test_ensemble_gets_urls_that_it_decodes_whatever_their_format(gateway):
    """It would fetch a URL with another label."""
    assert told(gateway, "mllama", TWO)["image_url_input"] == [PNG, GIF]
    assert told(gateway, "mllama", QUESTION) == {"prompt": RENDERED, "image_url_input": [PNG]}


@pytest.mark.parametrize(
    ("model", "tensor"), [("llmapi", "image_url"), ("qwen2_vl", "image_url_input")]
)
def test_model_with_a_template_of_its_own_gets_the_question(gateway, model, tensor):
    """A rendered prompt would be rendered twice."""
    assert told(gateway, model, QUESTION) == {"prompt": "a\nb", tensor: [PNG]}

    chat = [{"role": "system", "content": "x"}, {"role": "user", "content": QUESTION}]
    param, message = refused(gateway, model, None, messages=chat)
    assert param == "messages"
    assert "a single message of the role 'user'" in message


@pytest.mark.parametrize("model", ["llmapi_blind", "vila"])
def test_model_that_would_drop_images_refuses_them(gateway, model):
    """In OpenAI's words for a model of text."""
    param, message = refused(gateway, model, QUESTION)

    assert param == "messages[0].content[1].type"
    assert message == "Invalid content type. image_url is only supported by certain models."


def test_placeholders_in_text_are_refused_where_the_backend_would_read_them(gateway):
    """It tokenizes the prompt itself, and a placeholder without an image may stop an engine."""
    for content in ("<|vision|><image>", [*QUESTION, images.text("<|vision|><image>")]):
        _, message = refused(gateway, "nvidia_vllm", content)
        assert "Do not write placeholders" in message


def test_no_model_gets_an_address(gateway):
    """Neither the gateway nor a model connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        for model in ("nvidia_vllm", "llmapi", "mllama", "qwen2_vl"):
            for address in (url, f"{url}#data:image/jpeg;base64,", "file:///etc/passwd"):
                part = {"type": "image_url", "image_url": {"url": address}}
                param, message = refused(gateway, model, [part])
                assert param == "messages[0].content[0].image_url.url"
                assert address not in message
        with pytest.raises(TimeoutError):
            listener.accept()


def test_models_list_what_they_take(gateway):
    """/v1/models agrees with the refusals."""
    listed = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    found = {each["id"]: each for each in listed}

    assert {name for name, each in found.items() if each["capabilities"]["images"]} == {
        "nvidia_vllm",
        "mllama",
        "qwen2_vl",
        "llmapi",
    }
    assert found["qwen2_vl"]["images"]["max_images"] == 1
    assert found["mllama"]["images"]["detail"] == ["auto", "high"]
    assert found["vila"]["images"] is None


def test_log_names_no_image(gateway):
    """Their data are content, as texts are. Only the examples at start have a picture."""
    told(gateway, "nvidia_vllm", QUESTION)

    lines = Path(gateway.log).read_text().splitlines()
    logged = [each for each in lines if not each.startswith(("curl ", "print("))]
    assert len(logged) < len(lines)
    assert "iVBORw0KGgo" not in "\n".join(logged)
