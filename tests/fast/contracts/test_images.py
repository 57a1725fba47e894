"""The images of a request as the tensors of each kind of model."""

import base64
import hashlib
from typing import Any

import orjson
import pytest

from openai_frontend.contracts import Contract
from openai_frontend.contracts.pooling import EmbeddingContract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.engines.tensors import completed_config
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.media.modalities import ImageInput, ImageSupport, salted_digest
from openai_frontend.pooling import EmbedRequest
from tests import images
from tests.api.backends.standins.configs import NVIDIAS
from tests.fast.contracts.recorded import BLS, LLMAPI, Letters, RecordedOutputs, values

INPROCESS = completed_config({"backend": "inprocess", "max_batch_size": 0})


def nvidias(name: str, **more: Any) -> dict[str, Any]:
    """The config of one of NVIDIA's models."""
    sides = {
        side: [{"name": tensor, **said} for tensor, said in tensors.items()]
        for side, tensors in NVIDIAS[name].items()
    }
    return {"max_batch_size": 0, **sides, **more}


VLLM = nvidias("vllm", backend="vllm")
ENSEMBLE = nvidias("multimodal_ensemble", platform="ensemble", max_batch_size=8)


def image(data: bytes, format: str, **more: Any) -> ImageInput:
    text = base64.b64encode(data).decode()
    digest = hashlib.sha256(text.encode()).hexdigest()
    return ImageInput(base64=text, digest=digest, width=2, height=3, format=format, **more)


IMAGES = [image(images.png(), "png"), image(images.gif(), "gif", detail="low")]


def request(*, given: Any = IMAGES, **more: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt="<image>Hi",
        prompt_token_ids=[7, 8],
        images=given,
        sampling_params=SamplingParams(max_tokens=9),
        **more,
    )


SEES = ImageSupport()


def contract(config: dict[str, Any], support: ImageSupport | None = SEES) -> Contract:
    chosen = select_contracts(
        config, vocabulary=Letters(), options=ContractOptions(images=support), decoupled=True
    )
    assert chosen.generation is not None
    return chosen.generation


def encoded(made: Contract, asked: GenerationRequest) -> dict[str, Any]:
    return {name: values(tensor) for name, tensor in made.encode(asked).items()}


def test_inprocess_model_gets_base64_and_what_the_gateway_knows():
    sent = encoded(contract(INPROCESS), request())

    assert sent["image"] == [each.base64 for each in IMAGES]
    [info] = sent["media_info"]
    size = {"kind": "image", "width": 2, "height": 3}
    assert orjson.loads(info) == [
        {**size, "digest": IMAGES[0].digest, "detail": "auto", "format": "png"},
        {**size, "digest": IMAGES[1].digest, "detail": "low", "format": "gif"},
    ]


def test_digest_is_salted_as_the_prefix_cache():
    """Requests with different salts share no processed image."""
    sent = encoded(contract(INPROCESS), request(cache_salt="k/1"))

    [info] = sent["media_info"]
    expected = hashlib.sha256(f"k/1:{IMAGES[0].digest}".encode()).hexdigest()
    assert orjson.loads(info)[0]["digest"] == expected == salted_digest(IMAGES[0], "k/1")
    assert sent["cache_salt"] == ["k/1"]


def test_embedding_gets_the_same_tensors():
    asked = EmbedRequest(request_id="r", prompt_token_ids=[7], images=IMAGES, cache_salt="s")

    tensors = EmbeddingContract(INPROCESS).encode([asked])
    sent = {name: values(each) for name, each in tensors.items()}

    assert sent["image"] == [each.base64 for each in IMAGES]
    assert orjson.loads(sent["media_info"][0])[0]["digest"] == salted_digest(IMAGES[0], "s")
    assert sent["cache_salt"] == ["s"]


def test_image_tokens_are_read_with_the_last_response():
    outputs = RecordedOutputs(
        final=True, finish_reason=b"stop", num_output_tokens=3, num_input_tokens=20,
        num_image_tokens=16,
    )  # fmt: skip

    counts = contract(INPROCESS).decoder(request())(outputs).counts

    assert counts is not None
    assert (counts.prompt_tokens, counts.image_tokens) == (20, 16)


def test_nvidias_vllm_gets_plain_base64():
    """Beside the text with the model's placeholders; nothing else."""
    sent = encoded(contract(VLLM), request())

    assert sent["image"] == [each.base64 for each in IMAGES]
    assert sent["text_input"] == ["<image>Hi"]
    assert "media_info" not in sent


def test_llmapi_gets_data_urls_of_their_own_format():
    made = contract(LLMAPI, ImageSupport(takes_question=True))

    assert encoded(made, request())["image_url"] == [
        f"data:image/png;base64,{IMAGES[0].base64}",
        f"data:image/gif;base64,{IMAGES[1].base64}",
    ]


def test_ensemble_gets_urls_with_the_only_label_that_it_does_not_fetch():
    """Its preprocessing passes every other URL to `requests.get`."""
    made = contract(ENSEMBLE)
    tensors = made.encode(request(given=IMAGES))

    assert values(tensors["image_url_input"]) == [
        f"data:image/jpeg;base64,{each.base64}" for each in IMAGES
    ]
    assert tensors["image_url_input"][1] == (1, 2)  # a batch of one
    unfilled = {"image_input", "image_bytes_input", "image_sizes_input", "video_bytes_input"}
    assert not unfilled & tensors.keys()
    assert "prompt_table_extra_id" not in tensors


def test_ensemble_keeps_prompts_with_other_images_apart():
    """Where the token ids of all images are equal, its cache would mix them up."""
    made = contract(ENSEMBLE, ImageSupport(needs_table_id=True))

    [first], [again], [other], [without] = (
        encoded(made, request(given=given)).get("prompt_table_extra_id", [None])
        for given in (IMAGES[:1], IMAGES[:1], IMAGES[1:], [])
    )

    assert first == again != other
    assert without is None
    assert 1 <= first < 2**63


NO_INPUT = {**VLLM, "input": [each for each in VLLM["input"] if each["name"] != "image"]}
ONE_URL = {"name": "image_url_input", "data_type": "TYPE_STRING", "dims": [1], "optional": True}
# Config, ability of the model -> the most images of a request; None: any number
MOST = [
    *((each, None, 0) for each in (INPROCESS, VLLM, LLMAPI, ENSEMBLE)),
    (nvidias("ensemble", platform="ensemble", max_batch_size=8), SEES, 0),
    (NO_INPUT, SEES, 0),
    *((each, SEES, None) for each in (INPROCESS, VLLM, LLMAPI, ENSEMBLE)),
    ({**BLS, "input": [*BLS["input"], ONE_URL]}, SEES, 1),
]


@pytest.mark.parametrize(("config", "support", "most"), MOST)
def test_model_takes_as_many_images_as_its_input_and_its_ability_allow(config, support, most):
    """None without one of both. The BLS model's input has one element."""
    made = contract(config, support)

    assert made.supports("images") is (most != 0)
    assert made.max_images == most


def test_only_inprocess_models_know_the_detail():
    found = [contract(each).supports("image_detail") for each in (INPROCESS, VLLM, LLMAPI)]

    assert found == [True, False, False]


def test_request_without_images_has_the_same_tensors_as_before():
    for config in (INPROCESS, VLLM, ENSEMBLE, LLMAPI):
        asked = request(given=())

        assert contract(config).encode(asked) == contract(config, None).encode(asked)
