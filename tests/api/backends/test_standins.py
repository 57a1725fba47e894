"""Features of TensorRT-LLM's pipelines beyond OpenAI's fields, by tensor, on the real core."""

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from openai_frontend.errors import InferenceFailed
from openai_frontend.triton import Options, Server
from tests.api.backends import repository as standins
from tests.api.backends.standins.llama import Llama

PROMPT = "<|im_start|>user\nWhat is Triton?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = (
    "Triton Inference Server is NVIDIA's open-source server for machine learning models. "
    "This project loads its core as a library."
)
PIPELINES = ("ensemble", "tensorrt_llm_bls")

# slow: the models are processes that compute
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A core with the five models of a pipeline."""
    folder = tmp_path_factory.mktemp("pipeline") / "models"
    standins.write_tensorrt_llm(folder)
    started = Server(Options(model_repositories=[folder]))
    await started.start()
    yield started
    await started.stop()


def texts(*values: str) -> tuple[str, tuple[int, ...], bytes]:
    encoded = [value.encode() for value in values]
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    return "BYTES", (1, len(values)), raw


def numbers(datatype: str, values: Any) -> tuple[str, tuple[int, ...], bytes]:
    kinds = {"INT32": "i4", "FP16": "f2", "FP32": "f4", "UINT64": "u8", "BOOL": "?"}
    array = np.array(values, kinds[datatype])[None]
    return datatype, array.shape, array.tobytes()


def asked(**inputs: Any) -> dict[str, Any]:
    """A request for the answer alone, plus a test's own inputs."""
    return {
        "text_input": texts(PROMPT),
        "max_tokens": numbers("INT32", [50]),
        "exclude_input_in_output": numbers("BOOL", [True]),
        **inputs,
    }


async def told(server: Server, model: str, *outputs: str, **inputs: Any) -> list[list[Any]]:
    """These outputs of each response that has any."""
    names = outputs or ("text_output",)
    responses = [
        response async for burst in server.infer(model, asked(**inputs)) for response in burst
    ]
    lists = [[response.tolist(name) for name in names] for response in responses]
    return [each for each in lists if each[0] is not None]


@pytest.mark.parametrize("model", PIPELINES)
async def test_prompt_is_included_by_default(server, model):
    """Without exclude_input_in_output, a complete answer begins with the prompt."""
    [[[text]]] = await told(server, model, exclude_input_in_output=numbers("BOOL", [False]))

    assert text.decode().endswith(ANSWER)
    assert text.decode().removesuffix(ANSWER).startswith("user\nWhat is Triton?")


async def test_sequences(server):
    """num_return_sequences gives one response each; NVIDIA's BLS model does not pass it on."""
    drawn = {
        "num_return_sequences": numbers("INT32", [3]),
        "max_tokens": numbers("INT32", [8]),
        "temperature": numbers("FP32", [2.0]),
        "top_p": numbers("FP32", [1.0]),
        "seed": numbers("UINT64", [5]),
    }

    three = await told(server, "ensemble", "text_output", "sequence_index", **drawn)
    one = await told(server, "tensorrt_llm_bls", **drawn)

    assert sorted(index for _, [index] in three) == [0, 1, 2]
    assert len({text for [text], _ in three}) == 3
    assert len(one) == 1


@pytest.mark.parametrize("model", PIPELINES)
async def test_beams(server, model):
    """beam_width gives one response with all of them, best first."""
    [[beams, scores]] = await told(
        server,
        model,
        "text_output",
        "cum_log_probs",
        beam_width=numbers("INT32", [2]),
        return_log_probs=numbers("BOOL", [True]),
    )

    assert beams[0].decode() == ANSWER
    assert scores[0] > scores[1]


@pytest.mark.parametrize("model", PIPELINES)
async def test_logits_and_performance_on_request(server, model):
    """Logits of prompt and answer, and the times, are returned on request."""
    names = ("context_logits", "generation_logits", "arrival_time_ns", "last_token_time_ns")
    flags = ("return_context_logits", "return_generation_logits", "return_perf_metrics")
    [[context, generated, arrival, last]] = await told(
        server,
        model,
        *names,
        max_tokens=numbers("INT32", [2]),
        **{flag: numbers("BOOL", [True]) for flag in flags},
    )

    assert len(context) == 13 * 2048
    assert len(generated) == 2 * 2048
    assert arrival[0] < last[0]


@pytest.mark.parametrize("model", PIPELINES)
async def test_guides(server, model):
    """A guide constrains the answer to a schema, a regular expression or a grammar."""
    schema = {
        "type": "object",
        "properties": {"tokens": {"type": "integer"}},
        "required": ["tokens"],
        "additionalProperties": False,
    }
    guides = {
        "json_schema": json.dumps(schema),
        "regex": "(yes|no)",
        "ebnf_grammar": 'root ::= "red" | "blue"',
    }
    answers = {
        kind: (
            await told(
                server,
                model,
                guided_decoding_guide_type=texts(kind),
                guided_decoding_guide=texts(guide),
            )
        )[0][0][0].decode()
        for kind, guide in guides.items()
    }

    assert isinstance(json.loads(answers["json_schema"])["tokens"], int)
    assert answers["regex"] in ("yes", "no")
    assert answers["ebnf_grammar"] in ("red", "blue")


def lora() -> dict[str, Any]:
    """An adapter that zeroes the keys of the model's first layer."""
    weight = Llama(standins.WEIGHTS).weights["model.layers.0.self_attn.k_proj.weight"]
    outer, singular, inner = np.linalg.svd(weight, full_matrices=False)
    row = np.concatenate([inner.ravel(), (-outer * singular).ravel()])
    return {
        "lora_weights": numbers("FP16", [row]),
        "lora_config": numbers("INT32", [[2, 0, len(singular)]]),
    }


@pytest.mark.parametrize("model", PIPELINES)
async def test_adapter_cache(server, model):
    """Weights are sent once; later requests have only the task id, until it is evicted."""
    weights = lora()

    def task(number: int) -> dict[str, Any]:
        return {"lora_task_id": numbers("UINT64", [number]), "max_tokens": numbers("INT32", [12])}

    with pytest.raises(InferenceFailed, match="LoRA task 1 not found in cache"):
        await told(server, model, **task(1))
    first = await told(server, model, **task(1), **weights)
    again = await told(server, model, **task(1))
    for number in (2, 3):
        await told(server, model, **task(number), **weights)
    with pytest.raises(InferenceFailed, match="Please send LoRA weights with request"):
        await told(server, model, **task(1))

    assert first == again
    assert not ANSWER.startswith(first[0][0][0].decode())


async def test_invalid_requests_of_the_engine(server):
    """Too wide a beam and an invalid guide are errors with a reason."""
    with pytest.raises(InferenceFailed, match="beam width 9"):
        await told(server, "ensemble", beam_width=numbers("INT32", [9]))
    with pytest.raises(InferenceFailed, match="EOF while parsing"):
        await told(
            server,
            "ensemble",
            guided_decoding_guide_type=texts("json_schema"),
            guided_decoding_guide=texts("{"),
        )
    with pytest.raises(InferenceFailed, match="without draft model"):
        await told(server, "tensorrt_llm_bls", num_draft_tokens=numbers("INT32", [3]))
