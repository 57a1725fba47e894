import json
import struct
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.engines import input_tensors, output_tensors, pooling_tensors, tensors
from openai_frontend.engines.engine import EngineError
from openai_frontend.generation import Adapter, GenerationRequest, SamplingParams, StructuredOutputs
from openai_frontend.pooling import EmbedRequest, ScorePairRequest
from openai_frontend.runtime.utf8 import well_formed


@dataclass
class Values:
    """An input tensor, by its elements."""

    elements: list[Any]

    @property
    def nbytes(self) -> int:
        return 4 * len(self.elements)

    def item(self) -> Any:
        return self.elements[0]

    def tolist(self) -> list[Any]:
        return self.elements


CONTEXT = 100  # tokens


def text(value: str | bytes) -> Values:
    return Values([value.encode() if isinstance(value, str) else value])


def document(**fields: Any) -> Values:
    return text(json.dumps(fields))


GENERATIONS = {
    "text": (
        {"text_input": text("hé")},
        GenerationRequest(request_id="r", prompt="hé"),
    ),
    "token ids": (
        {"prompt_token_ids": Values([1, 2])},
        GenerationRequest(request_id="r", prompt_token_ids=[1, 2]),
    ),
    "token ids before text": (
        {"prompt_token_ids": Values([1, 2]), "text_input": text("hi")},
        GenerationRequest(request_id="r", prompt_token_ids=[1, 2]),
    ),
    "stream": (
        {"text_input": text("hi"), "stream": Values([True])},
        GenerationRequest(request_id="r", prompt="hi", stream=True),
    ),
    "sampling": (
        {"text_input": text("hi"), "sampling_parameters": document(max_tokens=3, stop=["x"])},
        GenerationRequest(
            request_id="r",
            prompt="hi",
            sampling_params=SamplingParams(max_tokens=3, stop=("x",)),
        ),
    ),
    "token ids back": (
        {"text_input": text("hi"), "return_token_ids": Values([True])},
        GenerationRequest(request_id="r", prompt="hi", return_token_ids=True),
    ),
    "interval": (
        {"text_input": text("hi"), "stream_interval": Values([3])},
        GenerationRequest(request_id="r", prompt="hi", stream_interval=3),
    ),
    "a text longer than the context": (
        {"text_input": text("hi " * 200)},
        GenerationRequest(request_id="r", prompt="hi " * 200),
    ),
    "priority and salt": (
        {"text_input": text("hi"), "priority": Values([-3]), "cache_salt": text("é")},
        GenerationRequest(request_id="r", prompt="hi", priority=-3, cache_salt="é"),
    ),
}


SAMPLING = {
    "logit_bias": ({"logit_bias": {"5": -1, "6": 2.5}}, {"logit_bias": {5: -1.0, 6: 2.5}}),
    "whole numbers for others": ({"temperature": 1}, {"temperature": 1.0}),
    "null": ({"max_tokens": None, "logprobs": None, "stop": None}, {}),
    "one stop text": ({"stop": "x"}, {"stop": ("x",)}),
    "lists": (
        {"stop_token_ids": [1], "allowed_token_ids": [2], "bad_words": ["a"]},
        {"stop_token_ids": [1], "allowed_token_ids": [2], "bad_words": ["a"]},
    ),
    "logprobs": (
        {"logprobs": 0, "prompt_logprobs": -1, "logprob_token_ids": [3]},
        {"logprobs": 0, "prompt_logprobs": -1, "logprob_token_ids": [3]},
    ),
    "structured outputs as NVIDIA's backend takes them": (
        {"structured_outputs": '{"json": {"type": "object"}}'},
        {"structured_outputs": StructuredOutputs(json={"type": "object"})},
    ),
    "structured outputs as an object": (
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": StructuredOutputs(choice=["a", "b"])},
    ),
    "mappings": (
        {
            "repetition_detection": {"max_pattern_size": 3, "min_count": 2},
            "extra_args": {"a": [1, "b"]},
        },
        {
            "repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 0, "min_count": 2},
            "extra_args": {"a": [1, "b"]},
        },
    ),
}


@pytest.mark.parametrize(("sent", "read"), SAMPLING.values(), ids=SAMPLING)
def test_sampling_parameters(sent, read):
    """JSON becomes the engine's parameters."""
    inputs = {"text_input": text("hi"), "sampling_parameters": document(**sent)}

    assert input_tensors.read_generation(inputs, "r", CONTEXT).sampling_params == SamplingParams(
        **read
    )


WRONG_TYPES: dict[str, list[Any]] = {
    "max_tokens": [1.5, "five", "1.5", True, [5]],
    "temperature": ["hot", True],
    "seed": ["one", 0.5],
    "stop": [5, [1], {"a": 1}],
    "stop_token_ids": [[1.5], ["1"], 5],
    "ignore_eos": [1, "yes", "1"],
    "logit_bias": [[5], {"a": 1.0}, {"5": "1"}],
    "bad_words": ["x"],
    "structured_outputs": ["{", "[]", {"banana": 1}, {"regex": 5}, '{"choice": "a"}'],
    "repetition_detection": [{"min_count": "2"}],
    "extra_args": [[], {"a": [None]}, {"a": None}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values]
)
def test_sampling_parameter_of_a_wrong_type(name, value):
    """It is refused by name and does not reach an engine that may crash on it."""
    inputs = {"text_input": text("hi"), "sampling_parameters": document(**{name: value})}

    with pytest.raises(ValueError, match=f"^sampling_parameters: {name}: "):
        input_tensors.read_generation(inputs, "r", CONTEXT)


@pytest.mark.parametrize(("inputs", "request_read"), GENERATIONS.values(), ids=GENERATIONS)
def test_read_generation(inputs, request_read):
    """Input tensors are decoded to a request."""
    assert input_tensors.read_generation(inputs, "r", CONTEXT) == request_read


NO_GENERATIONS = {
    "no prompt": ({}, "needs text_input or prompt_token_ids"),
    "no UTF-8": ({"text_input": text(b"\xff")}, "text_input is not UTF-8"),
    "no JSON": (
        {"text_input": text("hi"), "sampling_parameters": text("{")},
        "sampling_parameters: not JSON",
    ),
    "no object": (
        {"text_input": text("hi"), "sampling_parameters": text("[]")},
        "sampling_parameters: not a JSON object",
    ),
    "a salt that is no UTF-8": (
        {"text_input": text("hi"), "cache_salt": text(b"\xff")},
        "cache_salt is not UTF-8",
    ),
    "unknown key": (
        {"text_input": text("hi"), "sampling_parameters": document(banana=1)},
        "sampling_parameters: .*banana",
    ),
}


@pytest.mark.parametrize(("inputs", "message"), NO_GENERATIONS.values(), ids=NO_GENERATIONS)
def test_invalid_generation(inputs, message):
    """Invalid inputs are refused; the error names the tensor."""
    with pytest.raises(ValueError, match=message):
        input_tensors.read_generation(inputs, "r", CONTEXT)


EMBEDDINGS = {
    "text": (document(input="hi"), EmbedRequest(request_id="r", prompt="hi")),
    "token ids": (
        document(input=[1, 2]),
        EmbedRequest(request_id="r", prompt_token_ids=[1, 2]),
    ),
    "dimensions": (
        document(input="hi", pooling_params={"dimensions": 4}),
        EmbedRequest(request_id="r", prompt="hi", dimensions=4),
    ),
    "dimensions as NVIDIA's frontend sends them": (
        document(input="hi", pooling_params={"dimensions": [4]}),
        EmbedRequest(request_id="r", prompt="hi", dimensions=4),
    ),
    "no parameters": (
        document(input="hi", pooling_params=None),
        EmbedRequest(request_id="r", prompt="hi"),
    ),
}


@pytest.mark.parametrize(("tensor", "request_read"), EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_read_embedding(tensor, request_read):
    """The tensor `embedding_request` is decoded to a request."""
    assert pooling_tensors.read_embeddings({"embedding_request": tensor}, "r", CONTEXT) == [
        request_read
    ]


def test_embedding_of_a_token_id_tensor():
    """If the document has no input, `prompt_token_ids` is used."""
    inputs = {"embedding_request": document(), "prompt_token_ids": Values([1, 2])}

    [read] = pooling_tensors.read_embeddings(inputs, "r", CONTEXT)

    assert read == EmbedRequest(request_id="r", prompt_token_ids=[1, 2])


def test_embeddings_of_a_batch():
    """The prompts follow each other in `prompt_token_ids`; the engine gets a request for each."""
    inputs = {
        "embedding_request": document(pooling_params={"dimensions": [4]}),
        "prompt_token_ids": Values([1, 2, 3]),
        "prompt_lengths": Values([2, 0, 1]),
    }

    read = pooling_tensors.read_embeddings(inputs, "r", CONTEXT)

    prompts = {"r-0": [1, 2], "r-1": [], "r-2": [3]}
    assert read == [
        EmbedRequest(request_id=id, prompt_token_ids=ids, dimensions=4)
        for id, ids in prompts.items()
    ]


def test_scores_of_a_batch():
    """The token types follow each other in the same way."""
    inputs = {
        "score_request": document(),
        "prompt_token_ids": Values([1, 2, 3]),
        "prompt_lengths": Values([2, 1]),
    }
    typed = {**inputs, "token_type_ids": Values([0, 1, 0])}

    untyped = [
        ScorePairRequest(request_id="r-0", prompt_token_ids=[1, 2]),
        ScorePairRequest(request_id="r-1", prompt_token_ids=[3]),
    ]
    assert pooling_tensors.read_scores(inputs, "r", CONTEXT) == untyped
    assert pooling_tensors.read_scores(typed, "r", CONTEXT) == [
        replace(untyped[0], token_type_ids=[0, 1]),
        replace(untyped[1], token_type_ids=[0]),
    ]


def test_each_input_of_a_batch_has_the_salt_of_its_caller():
    batch = {
        "prompt_token_ids": Values([1, 2, 3]),
        "prompt_lengths": Values([2, 1]),
        "cache_salt": text("s"),
    }

    embeds = pooling_tensors.read_embeddings(
        {"embedding_request": document(), **batch}, "r", CONTEXT
    )
    scores = pooling_tensors.read_scores({"score_request": document(), **batch}, "r", CONTEXT)

    assert [each.cache_salt for each in embeds] == ["s", "s"]
    assert [each.cache_salt for each in scores] == ["s", "s"]


BATCHES = {
    "no length": ({"prompt_lengths": []}, "prompt_lengths: from 1 to 32, not 0"),
    "too many": ({"prompt_lengths": [1] * 33}, "prompt_lengths: from 1 to 32, not 33"),
    "negative": ({"prompt_lengths": [3, -1]}, r"prompt_lengths: input\[1\] has a negative length"),
    "too long": (
        {"prompt_lengths": [1, 101]},
        r"input\[1\]: 101 tokens exceed the model's context length of 100",
    ),
    "too few ids": (
        {"prompt_lengths": [2, 1]},
        "prompt_token_ids: has 2 numbers for inputs of 3 tokens",
    ),
    "too few types": (
        {"prompt_lengths": [1, 1], "token_type_ids": [0]},
        "token_type_ids: has 1 numbers for inputs of 2 tokens",
    ),
}


@pytest.mark.parametrize(("values", "message"), BATCHES.values(), ids=BATCHES)
def test_invalid_batch(values, message):
    """The error names the tensor, or the input by its position."""
    named = {name: Values(elements) for name, elements in values.items()}
    inputs = {"score_request": document(), "prompt_token_ids": Values([1, 2]), **named}

    with pytest.raises(ValueError, match=message):
        pooling_tensors.read_scores(inputs, "r", CONTEXT)


@pytest.mark.parametrize("ids", [{}, {"prompt_token_ids": Values([1])}])
def test_batch_has_its_prompts_as_a_tensor(ids):
    """An input in the document would be another one."""
    inputs = {"embedding_request": document(input="a"), "prompt_lengths": Values([1]), **ids}

    with pytest.raises(ValueError, match="prompt_lengths: requires prompt_token_ids and no input"):
        pooling_tensors.read_embeddings(inputs, "r", CONTEXT)


def test_batch_has_no_images():
    inputs = {
        "embedding_request": document(),
        "prompt_token_ids": Values([1, 2]),
        "prompt_lengths": Values([1, 1]),
        "image": text("iVBORw0KGgo="),
    }

    with pytest.raises(ValueError, match="an input with images must be the only one"):
        pooling_tensors.read_embeddings(inputs, "r", CONTEXT)


NO_EMBEDDINGS = {
    "no JSON": (text("hi"), "embedding_request: not JSON"),
    "no input": (document(), "embedding_request: input"),
    "number": (document(input=1), "embedding_request: input"),
    "texts": (document(input=["a"]), "embedding_request: input"),
    "no token id": (document(input=[-1]), "embedding_request: input"),
    "parameters of text": (document(input="hi", pooling_params="x"), "pooling_params"),
    "dimensions of text": (document(input="hi", pooling_params={"dimensions": "4"}), "dimensions"),
    "negative": (document(input="hi", pooling_params={"dimensions": -4}), "dimensions"),
    "no dimension": (document(input="hi", pooling_params={"dimensions": []}), "dimensions"),
}


@pytest.mark.parametrize(("tensor", "message"), NO_EMBEDDINGS.values(), ids=NO_EMBEDDINGS)
def test_invalid_embedding(tensor, message):
    """An invalid embedding request is refused; the error names the field."""
    with pytest.raises(ValueError, match=message):
        pooling_tensors.read_embeddings({"embedding_request": tensor}, "r", CONTEXT)


SCORES = {
    "one type": (document(input=[1, 2]), {}),
    "two types": (document(input=[1, 2], token_type_ids=[0, 1]), {"token_type_ids": [0, 1]}),
}


@pytest.mark.parametrize(("tensor", "types"), SCORES.values(), ids=SCORES)
def test_read_score(tensor, types):
    """The tensor `score_request` is decoded to a request."""
    [read] = pooling_tensors.read_scores({"score_request": tensor}, "r", CONTEXT)

    assert read == ScorePairRequest(request_id="r", prompt_token_ids=[1, 2], **types)


NO_SCORES = {
    "no JSON": (text("hi"), "score_request: not JSON"),
    "no input": (document(), "score_request: input"),
    "text": (document(input="hi"), "score_request: input"),
    "types of text": (document(input=[1], token_type_ids="0"), "token_type_ids"),
    "too few types": (document(input=[1, 2], token_type_ids=[0]), "token_type_ids"),
}


@pytest.mark.parametrize(("tensor", "message"), NO_SCORES.values(), ids=NO_SCORES)
def test_invalid_score(tensor, message):
    """An invalid score request is refused; the error names the field."""
    with pytest.raises(ValueError, match=message):
        pooling_tensors.read_scores({"score_request": tensor}, "r", CONTEXT)


def test_config_is_completed():
    """A config without tensors gets all of them and becomes decoupled."""
    completed = tensors.completed_config({"name": "m"})

    assert [tensor["name"] for tensor in completed["input"]] == list(tensors.INPUTS)
    assert [tensor["name"] for tensor in completed["output"]] == list(tensors.OUTPUTS)
    assert completed["model_transaction_policy"] == {"decoupled": True}


def test_declared_settings_are_kept():
    """Tensors and other settings that the user declared stay unchanged."""
    own = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [-1]}
    config = {"name": "m", "input": [own], "instance_group": [{"count": 1}]}
    completed = tensors.completed_config(config)

    assert completed["input"][0] == own
    assert [tensor["name"] for tensor in completed["input"]].count("text_input") == 1
    assert completed["instance_group"] == [{"count": 1}]


def test_completing_copies_the_config():
    """The given config is not modified."""
    config = {"name": "m", "input": []}
    tensors.completed_config(config)

    assert config == {"name": "m", "input": []}


OUTPUTS = {
    "text": (output_tensors.bytes_output("t", "é"), ("t", "BYTES", (1,), b"\2\0\0\0\xc3\xa9")),
    "json": (output_tensors.json_output("j", [1]), ("j", "BYTES", (1,), b"\3\0\0\0[1]")),
    "count": (output_tensors.count_output("c", 258), ("c", "UINT32", (1,), b"\2\1\0\0")),
    "score": (output_tensors.float_output("score", 0.5), ("score", "FP32", (1,), b"\0\0\0?")),
    "vectors": (
        output_tensors.vectors_output("v", [memoryview(array("f", [at])) for at in (0, 0.5)]),
        ("v", "FP32", (2,), b"\0\0\0\0\0\0\0?"),
    ),
    "token ids": (
        output_tensors.token_ids_output((1, -1)),
        ("token_ids", "INT32", (2,), struct.pack("<2i", 1, -1)),
    ),
    "no token ids": (output_tensors.token_ids_output(()), ("token_ids", "INT32", (0,), b"")),
}


@pytest.mark.parametrize(("output", "described"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs(output, described):
    """An output is a name, a datatype, a shape and bytes in Triton's layout."""
    assert output == described


def test_an_adapter_is_read_by_its_name():
    """`lora_name` among the sampling parameters is NVIDIA's word for it; the model's own table says
    which adapter that is.
    """
    adapter = Adapter(name="pirate", id=3, path=Path("/adapters/pirate"))
    inputs = {
        "text_input": text("hi"),
        "sampling_parameters": document(lora_name="pirate", top_k=2),
    }

    read = input_tensors.read_generation(inputs, "r", CONTEXT, {"pirate": adapter})

    assert read.adapter is adapter
    assert read.sampling_params == SamplingParams(top_k=2)


@pytest.mark.parametrize("name", ["parrot", "/adapters/pirate", "../pirate", ""])
def test_unknown_adapter(name: str):
    """Neither an adapter that the model lacks, nor a path to one that it has."""
    adapter = Adapter(name="pirate", id=3, path=Path("/adapters/pirate"))
    inputs = {"text_input": text("hi"), "sampling_parameters": document(lora_name=name)}

    with pytest.raises(EngineError, match="lora_name: the model has no adapter with that name"):
        input_tensors.read_generation(inputs, "r", CONTEXT, {"pirate": adapter})


def test_request_parameters_replace_the_tensor():
    """The request's own parameters are used if `sampling_parameters` is absent."""
    given = {"temperature": 0, "max_tokens": 3, "stop": "end"}

    request = input_tensors.read_generation(
        {"text_input": text("hi")}, "r", CONTEXT, {}, lambda: given
    )

    assert request.sampling_params == SamplingParams(temperature=0, max_tokens=3, stop=("end",))


def test_unknown_request_parameter():
    """An unknown request parameter is refused by name."""
    with pytest.raises(ValueError, match="sampling_parameters: warmth"):
        input_tensors.read_generation(
            {"text_input": text("hi")}, "r", CONTEXT, {}, lambda: {"warmth": 1}
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a é 🙂", "a é 🙂"),
        ("\ud83d\ude42", "🙂"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
    ],
)
def test_well_formed(text, expected):
    """What UTF-8 cannot encode is replaced as decoders do; other text stays unchanged."""
    assert well_formed(text) == expected
