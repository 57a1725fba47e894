"""The tensors of TensorRT-LLM's pipelines: encoded requests and decoded responses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.contracts import Contract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import (
    Adapter,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    SequenceDelta,
    StructuredOutputs,
    TokenCounts,
)
from tests.fast.contracts.recorded import (
    ACCUMULATING_BLS,
    BLS,
    ENSEMBLE,
    Letters,
    RecordedOutputs,
    tensors,
    values,
)

# The inputs of every request for one token
ALWAYS = {
    "text_input": ["Hi"],
    "max_tokens": [9],
    "exclude_input_in_output": [True],
    "return_num_input_tokens": [True],
    "return_num_output_tokens": [True],
}


def contract(config: dict[str, Any] = ENSEMBLE, **options: Any) -> Contract:
    """Return the contract that is selected for a config."""
    chosen = select_contracts(config, vocabulary=options.pop("vocabulary", Letters()), **options)
    assert chosen.name == "tensorrt_llm"
    assert chosen.generation is not None
    return chosen.generation


def request(*, stream: bool = False, adapter: Adapter | None = None, **params: Any) -> Any:
    """A request for nine tokens."""
    sampling = SamplingParams(**{"max_tokens": 9, **params})
    return GenerationRequest(
        request_id="r",
        prompt="Hi",
        prompt_token_ids=[1, 2, 3],
        sampling_params=sampling,
        stream=stream,
        adapter=adapter,
    )


def told(config: dict[str, Any] = ENSEMBLE, **params: Any) -> dict[str, Any]:
    """Return the encoded tensors of a request, without those of every request."""
    inputs = contract(config).encode(request(**params))
    plain = {name: values(tensor) for name, tensor in inputs.items()}
    return {name: value for name, value in plain.items() if value != ALWAYS.get(name)}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {}),
        ({"stream": True}, {"stream": [True]}),
        ({"min_tokens": 2}, {"min_tokens": [2]}),
        ({"top_p": 0.5}, {"top_p": [0.5]}),
        ({"temperature": 0.5}, {"temperature": [0.5], "top_p": [1.0]}),
        ({"temperature": 0.5, "top_p": 0.25}, {"temperature": [0.5], "top_p": [0.25]}),
        ({"temperature": 0.5, "top_k": 3}, {"temperature": [0.5], "top_k": [3]}),
        ({"temperature": 0.5, "top_k": -1}, {"temperature": [0.5], "top_k": [0], "top_p": [1.0]}),
        ({"temperature": 0.0}, {"top_k": [1]}),
        ({"temperature": 0.0, "top_k": 40}, {"top_k": [1]}),
        ({"presence_penalty": 0.5}, {"presence_penalty": [0.5]}),
        ({"frequency_penalty": -0.5}, {"frequency_penalty": [-0.5]}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": [1.5]}),
        ({"seed": 7}, {"seed": [7]}),
        ({"seed": -1}, {"seed": [2**64 - 1]}),
        ({"stop": ["END", "\n"]}, {"stop_words": ["END", "\n"]}),
        ({"bad_words": ["bad"]}, {"bad_words": ["bad", " bad"]}),
        ({"ignore_eos": True}, {"end_id": [-1]}),
        ({"logprobs": 0}, {"return_log_probs": [True], "stream": [True]}),
        (
            {"logit_bias": {97: 2.0, 98: -0.5}},
            {
                "embedding_bias_words": ["a", "b", ""],
                "embedding_bias_weights": [2.0, -0.5, -1.5],
            },
        ),
        ({"adapter": Adapter(name="x", id=7)}, {"lora_task_id": [7]}),
        ({"length_penalty": 2.0}, {"length_penalty": [2.0]}),
        ({"beam_width": 4, "stream": True}, {"beam_width": [4], "stream": [False]}),
    ],
)
def test_each_field_has_its_tensor(params: dict[str, Any], expected: dict[str, Any]) -> None:
    """The tensor has the model's name. Fields that the request does not set are not sent."""

    assert told(**params) == expected


@pytest.mark.parametrize(
    ("structured", "expected"),
    [
        ({"json": {"type": "object"}}, ("json_schema", '{"type":"object"}')),
        ({"json": '{"type": "object"}'}, ("json_schema", '{"type": "object"}')),
        ({"json_object": True}, ("json", "")),
        ({"regex": "[ab]+"}, ("regex", "[ab]+")),
        ({"choice": ["✓", 'b"']}, ("ebnf_grammar", 'root ::= "✓" | "b\\""')),
        ({"grammar": 'root ::= "a"'}, ("ebnf_grammar", 'root ::= "a"')),
    ],
)
def test_constraint_becomes_a_guide(structured: dict[str, Any], expected: tuple[str, str]) -> None:
    """It has one of the backend's own guide types."""

    inputs = told(structured_outputs=StructuredOutputs(**structured))
    assert inputs == {
        "guided_decoding_guide_type": [expected[0]],
        "guided_decoding_guide": [expected[1]],
    }


def test_tensors_have_the_declared_type_and_rank() -> None:
    """They have a batch dimension if the model batches; the bytes are exact."""

    inputs = contract().encode(request(stop=["é", "b"], seed=1))
    assert inputs["stop_words"] == ("BYTES", (1, 2), b"\x02\0\0\0\xc3\xa9\x01\0\0\0b")
    assert inputs["seed"] == ("UINT64", (1, 1), b"\x01" + b"\0" * 7)
    assert inputs["max_tokens"] == ("INT32", (1, 1), b"\x09\0\0\0")
    inputs = contract({**ENSEMBLE, "max_batch_size": 0}).encode(request())
    assert inputs["max_tokens"] == ("INT32", (1,), b"\x09\0\0\0")


def test_prompt_has_no_second_bos() -> None:
    """The model's own tokenizer adds one."""

    asked = GenerationRequest(
        request_id="r", prompt="<s>Hi", sampling_params=SamplingParams(max_tokens=9)
    )
    assert values(contract().encode(asked)["text_input"]) == ["Hi"]


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"top_k": 2**31}, "top_k"),
        ({"logit_bias": {0x110000: 1.0}}, "logit_bias"),
        ({"structured_outputs": StructuredOutputs(grammar='start: "a"')}, "structured_outputs"),
        ({"extra_args": {"lora_weights": 1}}, "vllm_xargs.lora_weights"),
        ({"extra_args": {"end_id": "1"}}, "vllm_xargs.end_id"),
        ({"extra_args": {"num_draft_tokens": True}}, "vllm_xargs.num_draft_tokens"),
    ],
)
def test_unsupported_values_are_refused_by_name(params: dict[str, Any], param: str) -> None:
    """They are never changed or dropped."""

    with pytest.raises(InvalidRequest) as refused:
        contract(BLS).encode(request(**params))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("field", "tensor"),
    [
        ("min_tokens", "min_tokens"),
        ("ignore_eos", "end_id"),
        ("logit_bias", "embedding_bias_weights"),
        ("logprobs", "return_log_probs"),
        ("logprobs", "output_log_probs"),
        ("structured_outputs.regex", "guided_decoding_guide"),
        ("adapter", "lora_task_id"),
        ("seed", "seed"),
        ("bad_words", "bad_words"),
    ],
)
def test_field_is_supported_if_all_its_tensors_are_declared(field: str, tensor: str) -> None:
    without = {
        **ENSEMBLE,
        **{
            side: [each for each in ENSEMBLE[side] if each["name"] != tensor]
            for side in ("input", "output")
        },
    }
    assert (contract().supports(field), contract(without).supports(field)) == (True, False)


@pytest.mark.parametrize("field", ["stop", "include_stop_str_in_output", "stream", "prompt"])
def test_stop_strings_are_always_supported(field: str) -> None:
    """The gateway cuts the text, whatever the pipeline does."""

    bare = {
        "model_transaction_policy": {"decoupled": True},
        "input": tensors("text_input:STRING max_tokens:INT32 bad_words:STRING"),
        "output": tensors("text_output:STRING"),
    }
    assert contract(bare).supports(field)


def response(text: str, tokens: int, *, final: bool = False, **more: Any) -> RecordedOutputs:
    return RecordedOutputs(
        final=final,
        text_output=[text.encode()],
        num_input_tokens=[3],
        num_output_tokens=[tokens],
        **more,
    )


def read(config: dict[str, Any], asked: GenerationRequest, *responses: RecordedOutputs) -> Any:
    decode = contract(config).decoder(asked)
    return [decode(each) for each in responses]


@pytest.mark.parametrize(
    ("config", "texts"), [(BLS, ["a", "b"]), (ACCUMULATING_BLS, ["a", "ab"])], ids=["", "whole"]
)
def test_stream_ends_with_an_empty_response(config: dict[str, Any], texts: list[str]) -> None:
    """BLS ends with an empty response; with `accumulate_tokens` each response has the
    text so far.
    """

    responses = [response(text, 1) for text in texts]
    assert read(config, request(stream=True), *responses, RecordedOutputs(final=True)) == [
        CompletionDelta("a", counts=TokenCounts(3, 1)),
        CompletionDelta("b", counts=TokenCounts(3, 1)),
        CompletionDelta(finish_reason="stop"),
    ]


@pytest.mark.parametrize(("tokens", "reason"), [(9, "length"), (10, "length"), (8, "stop")])
def test_finish_reason_follows_from_the_token_count(tokens: int, reason: Any) -> None:
    """The pipeline does not report it."""

    (delta,) = read(ENSEMBLE, request(), response("ab", tokens, final=True))
    assert delta == CompletionDelta("ab", finish_reason=reason, counts=TokenCounts(3, tokens))


def test_whole_answer_is_cut_at_its_stop_string() -> None:
    """The pipeline leaves the stop string in the text."""

    (delta,) = read(ENSEMBLE, request(stop=["END"]), response("one ENDx", 9, final=True))
    assert delta == CompletionDelta(
        "one ", finish_reason="stop", stop_reason="END", counts=TokenCounts(3, 9)
    )


def test_logprobs_are_those_of_the_responses_own_tokens() -> None:
    """While streaming, the executor sends those of all tokens so far each time."""

    responses = [
        response("a", 1, output_log_probs=[-1.0]),
        response("b", 1, output_log_probs=[-1.0, -2.0]),
        RecordedOutputs(final=True),
    ]
    deltas = read(BLS, request(stream=True, logprobs=0), *responses)
    assert [each.logprobs for each in deltas] == [
        [{97: {"logprob": -1.0, "rank": None, "decoded_token": "a"}}],
        [{98: {"logprob": -2.0, "rank": None, "decoded_token": "b"}}],
        None,
    ]


def test_draft_tokens_disable_streaming() -> None:
    """BLS refuses the combination, so the answer comes in one piece."""

    inputs = told(BLS, stream=True, extra_args={"num_draft_tokens": 4})
    assert inputs == {"num_draft_tokens": [4], "stream": [False]}


@pytest.mark.parametrize("empty_end", [False, True])
def test_beam_search_returns_all_sequences_at_once(empty_end: bool) -> None:
    """Each is an answer of its own. The tokenizer counts its tokens, because the model reports only
    their sum.
    """

    asked = replace(request(beam_width=2, max_tokens=3), sequences=2)
    whole = RecordedOutputs(
        final=not empty_end,
        text_output=[b"abc", b"xy"],
        num_input_tokens=[3],
        num_output_tokens=[6],
    )
    responses = [whole, RecordedOutputs(final=True)][: 1 + empty_end]
    for at, expected in enumerate([("abc", "length", 3), ("xy", "stop", 2)]):
        decode = contract().decoder(replace(asked, sequence=at))
        deltas = [decode(each) for each in responses]
        assert all(isinstance(each, SequenceDelta) and each.sequence == at for each in deltas)
        counts = deltas[-1].counts
        assert counts is not None
        answer = ("".join(each.text for each in deltas), deltas[-1].finish_reason)
        assert (*answer, counts.completion_tokens) == expected


def test_metrics_and_logits_are_returned_on_request() -> None:
    """They have the model's own names and come with the token counts."""

    logits = np.zeros((1, 2, 4), dtype="<f4")
    told = response("ab", 2, final=True, kv_cache_reused_blocks=[5], context_logits=logits)
    (plain,) = read(ENSEMBLE, request(), told)
    assert plain.counts == TokenCounts(3, 2)
    asked = {"return_perf_metrics": True, "return_context_logits": True}
    (delta,) = read(ENSEMBLE, request(extra_args=asked), told)
    assert delta.counts == TokenCounts(
        3, 2, metrics={"kv_cache_reused_blocks": 5}, logits={"context_logits": logits}
    )


def test_engine_without_text_input_is_not_served() -> None:
    """Its requests go to the ensemble or BLS model."""

    config = {"input": tensors("input_ids:INT32"), "output": tensors("output_ids:INT32")}
    with pytest.raises(ModelUnavailable, match="ensemble or BLS model"):
        select_contracts(config)


@given(
    names=st.sets(st.sampled_from([each["name"] for each in ENSEMBLE["input"]])),
    batch=st.sampled_from([0, 1, 64]),
    renamed=st.booleans(),
)
def test_any_subset_of_the_inputs_works(names: set[str], batch: int, renamed: bool) -> None:
    """A request with every field sends only the declared inputs, with their ranks."""

    names |= {"text_input", "max_tokens", "stop_words"}
    inputs = [each for each in ENSEMBLE["input"] if each["name"] in names]
    mapped = {"text_input": "PROMPT"} if renamed else {}
    inputs = [{**each, "name": mapped.get(each["name"], each["name"])} for each in inputs]
    config = {**ENSEMBLE, "input": inputs, "max_batch_size": batch}
    options = ContractOptions(tensors=mapped)
    sent = contract(config, options=options).encode(
        request(
            stream=True,
            temperature=0.5,
            top_k=3,
            seed=1,
            stop=["a"],
            bad_words=["a"],
            ignore_eos=True,
            logprobs=0,
            logit_bias={97: 1.0},
            structured_outputs=StructuredOutputs(regex="a"),
            adapter=Adapter(name="x", id=7),
        )
    )
    declared = {each["name"]: len(each["dims"]) for each in inputs}
    ranks = {name: len(shape) for name, (_, shape, _) in sent.items()}
    assert ranks == {name: declared[name] + (batch > 0) for name in sent}


def test_request_names_a_prompt_table() -> None:
    """The operator provides its file; the extra id distinguishes prompts with different tables."""

    tables = {"b": np.ones((2, 3), dtype="<f4"), "a": np.zeros((1, 3), dtype="<f2")}
    known = contract(options=ContractOptions(prompt_embedding_tables=tables))
    sent = known.encode(request(extra_args={"prompt_embedding_table": "b"}))
    assert sent["prompt_embedding_table"][:2] == ("FP16", (1, 2, 3))
    assert values(sent["prompt_embedding_table"]) == [1.0] * 6
    numbers = [values(sent[name]) for name in ("prompt_vocab_size", "prompt_table_extra_id")]
    assert numbers == [[2], [2]]


@pytest.mark.parametrize("name", ["c", "../a", "/etc/passwd", 3])
def test_unknown_prompt_table_is_refused(name: Any) -> None:
    """A name is never a path; without tables, the argument is unknown."""

    asked = request(extra_args={"prompt_embedding_table": name})
    given = ContractOptions(prompt_embedding_tables={"a": np.zeros((1, 3), dtype="<f2")})
    for options in (given, ContractOptions()):
        with pytest.raises(InvalidRequest) as refused:
            contract(options=options).encode(asked)
        assert refused.value.param == "vllm_xargs.prompt_embedding_table"


def test_logprobs_and_metrics_in_one_request() -> None:
    """Both are returned; a response without tokens has no logprobs."""

    asked = request(stream=True, logprobs=0, extra_args={"return_perf_metrics": True})
    responses = [
        response("a", 1, output_log_probs=[-1.0]),
        response("", 0, output_log_probs=[-1.0], kv_cache_reused_blocks=[5]),
    ]
    first, second = read(BLS, asked, *responses)
    assert (len(first.logprobs), second.logprobs) == (1, None)
    assert second.counts == TokenCounts(3, 0, metrics={"kv_cache_reused_blocks": 5}, logits={})


@pytest.mark.parametrize("told_prompt", ["Hi", ""])
def test_prompt_before_the_answer_is_removed(told_prompt: str) -> None:
    """Old releases always send it. Its tokens do not count as the answer's."""

    inputs = [each for each in ENSEMBLE["input"] if each["name"] != "exclude_input_in_output"]
    tokens = 2 + 3 * bool(told_prompt)
    whole = response(f"{told_prompt} there", tokens, final=True)
    asked = replace(request(max_tokens=2), prompt="<s>Hi")
    (delta,) = read({**ENSEMBLE, "input": inputs}, asked, whole)
    assert delta == CompletionDelta(" there", finish_reason="length", counts=TokenCounts(3, 2))
