"""Without internal parts of vLLM, as with untested versions: AsyncLLM, vLLM's own scheduler and
worker, and one grammar engine.
"""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest
import pytest_asyncio

from openai_frontend import errors
from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.generation import StructuredOutputs
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import Server, inprocess
from tests import mock_models
from tests.gateway_process import ROOT
from tests.vllm.calls import calls_of
from tests.vllm.conftest import Models
from tests.vllm.constrained_answers import QUESTION, held, offered, read
from tests.vllm.requests import answer, collect, send
from tests.vllm.test_engine import running, until
from tests.vllm.test_pooling import MINILM, embed

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

MODEL, POOLING = "untested", "untested-pooling"
DEMO = ROOT / "model_repository" / "demo"
HOT = {"temperature": 1.5, "seed": 3, "max_tokens": 200}
PLACE = {
    "type": "object",
    "properties": {"street": {"enum": ["High", "Low"]}, "number": {"type": "integer"}},
    "required": ["street", "number"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(models_beside: Models) -> AsyncIterator[Server]:
    """The demo model, and an embedding model."""
    repository = models_beside.repository
    shutil.copytree(DEMO, repository / MODEL)
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    mock_models.write(repository, POOLING, config=config, model=MINILM, runner="pooling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(versions.VARIABLE, "")
        async with models_beside.loaded(MODEL, POOLING) as loaded:
            yield loaded


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def models(server: Server) -> AsyncIterator[ModelRegistry]:
    """Both models."""
    registry = ModelRegistry(server, ModelLoader(server))
    await registry.refresh()
    yield registry
    registry.close()


async def test_engine_runs_without_internal_vllm_classes(server: Server):
    """It uses neither the step loop nor this project's scheduler and worker."""
    engine = inprocess.handle(MODEL)._engine
    config = engine._engine.vllm_config

    assert engine._steps is None
    assert "openai_frontend" not in str(config.scheduler_config.scheduler_cls)
    assert "openai_frontend" not in config.parallel_config.worker_cls


async def test_whole_and_streamed_answers_are_equal(server: Server):
    """A greedy answer ends by itself, with the same text whole and streamed."""
    streamed, whole = [
        await answer(server, MODEL, QUESTION, return_token_ids=True, stream=stream)
        for stream in (True, False)
    ]

    assert streamed == whole
    assert whole.finish_reason == "stop"


async def test_logprobs(server: Server):
    """Each token has its log probability and those of the two most likely tokens."""
    told = await answer(server, MODEL, QUESTION, logprobs=2, max_tokens=4, return_token_ids=True)

    logprobs = list(told.logprobs or ())
    assert len(logprobs) == 4
    assert all(token in each for token, each in zip(told.token_ids, logprobs, strict=True))
    assert min(map(len, logprobs)) >= 2


async def test_seeds_with_chunked_prefill(server: Server):
    """Prompts that do not fit into one step give the same answer with a seed as they do alone."""
    prompts = [[100 + (i * n) % 389 for i in range(1800)] for n in range(1, 5)]
    options = {"seed": 7, "temperature": 1.0, "max_tokens": 8}
    together = await asyncio.gather(*(answer(server, MODEL, each, **options) for each in prompts))

    alone = [await answer(server, MODEL, each, **options) for each in prompts]

    assert [each.text for each in together] == [each.text for each in alone]


async def test_cancel_reaches_the_engine(server: Server):
    """A cancelled stream leaves nothing running in the engine."""
    stream = send(server, MODEL, QUESTION, max_tokens=2000, ignore_eos=True)
    await anext(stream)
    stream.cancel()
    with pytest.raises(errors.RequestCancelled):
        await collect(server, MODEL, stream)

    await until(lambda: running(MODEL) == 0, timeout_s=60)


def is_place(text: str) -> bool:
    jsonschema.validate(json.loads(text), PLACE)
    return True


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<p>",
        "content": {"type": "json_schema", "json_schema": PLACE},
        "end": "</p>",
    },
}
ENFORCED: Mapping[str, tuple[dict[str, Any], Any]] = {
    "json": ({"json": PLACE}, is_place),
    "json_object": ({"json_object": True}, lambda text: text.startswith("{")),
    "regex": ({"regex": "[ab]{3,9}c"}, re.compile("[ab]{3,9}c").fullmatch),
    "choice": ({"choice": ["left", "right"]}, lambda text: text in ("left", "right")),
    "EBNF": ({"grammar": 'root ::= "x" [0-9]'}, re.compile("x[0-9]").fullmatch),
    "Lark": ({"grammar": 'start: "y" /[0-9]/'}, re.compile("y[0-9]").fullmatch),
    "structural_tag": (
        {"structural_tag": json.dumps(TAG)},
        lambda text: is_place(text.removeprefix("<p>").removesuffix("</p>")),
    ),
}


@pytest.mark.parametrize(("fields", "matches"), ENFORCED.values(), ids=ENFORCED.keys())
async def test_constraints_are_enforced(server: Server, fields: dict[str, Any], matches: Any):
    """Each kind is enforced at a temperature that makes tokens random."""
    structured = StructuredOutputs(**fields)
    told = await answer(server, MODEL, QUESTION, structured_outputs=structured, **HOT)

    assert matches(told.text), told.text


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "beyond xgrammar": (
        {"json": {"type": "integer", "multipleOf": 3}},
        "cannot enforce all of it",
    ),
    "bounded length": ({"json": {"type": "string", "maxLength": 9}}, "minLength and maxLength"),
    "long count": ({"regex": "a{200}"}, "cannot enforce all of it"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_unsupported_constraints_are_refused(
    server: Server, fields: dict[str, Any], message: str
):
    """The error says that the one grammar engine cannot enforce them."""
    structured = StructuredOutputs(**fields)
    with pytest.raises(errors.InvalidRequest, match=message):
        await answer(server, MODEL, QUESTION, structured_outputs=structured, **HOT)


async def test_required_calls(server: Server):
    """A required tool call is parsed, and its arguments match the function's schema."""
    tools = offered({"move": PLACE})
    given = held("hermes", tools)
    told = await answer(server, MODEL, QUESTION, structured_outputs=given.structured, **HOT)

    ((name, called),) = calls_of(read("hermes", tools, given, told.text))[:1]
    assert name == "move"
    assert is_place(called)


async def test_card_and_metrics_report_what_is_disabled(models: ModelRegistry, server: Server):
    """One sentence and one sample per capability; the public ones are used."""
    internal = {each.name for each in capabilities.CAPABILITIES if not each.public}

    limitations = models.card(MODEL).facts.limitations
    used = {
        labels["capability"]: value
        for name, labels, value in inprocess.handle(MODEL).samples()
        if name == "openai_frontend_engine_capability"
    }

    assert {each.partition(":")[0] for each in limitations} == internal
    assert {name for name, value in used.items() if value == 0} == internal
    assert used["engine"] == used["parsers"] == 1


async def test_embeddings(models: ModelRegistry):
    """Vectors have the model's width and length 1."""
    vector = await embed(models.get(POOLING), "A cat sleeps on the sofa.")

    assert vector.shape == (384,)
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-4)
