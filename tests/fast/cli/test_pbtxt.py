from typing import Any

import pytest

from openai_frontend.cli import pbtxt

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "a comment": ("# max_batch_size: 1", {}),
    "a list of numbers": (
        "dynamic_batching { preferred_batch_size: [4, 8] }",
        {"dynamic_batching": {"preferred_batch_size": [4, 8]}},
    ),
    "a list in a list": (
        "instance_group [{ gpus: [0, 1] }, { kind: KIND_CPU }]",
        {"instance_group": [{"gpus": [0, 1]}, {"kind": "KIND_CPU"}]},
    ),
    "repeated fields": (
        "input <dims: -1 dims: 8000000000>",
        {"input": [{"dims": [-1, 8000000000]}]},
    ),
    "a map of messages": (
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } }",
        {"dynamic_batching": {"priority_queue_policy": {"2": {"max_queue_size": 3}}}},
    ),
    "a map of texts": ("metric_tags { key: 'a' value: 'b' }", {"metric_tags": {"a": "b"}}),
    "escapes": (r'name: "\x41\303\251\"\n" "b"', {"name": 'Aé"\nb'}),
    "numbers": (
        "model_warmup { count: 0x10 } cc_model_filenames { key: '1' value: '{ # }' }",
        {"model_warmup": [{"count": 16}], "cc_model_filenames": {"1": "{ # }"}},
    ),
    "true": ("input { optional: t }", {"input": [{"optional": True}]}),
}


@pytest.mark.parametrize(("text", "expected"), CONFIGS.values(), ids=CONFIGS.keys())
def test_values_equal_tritons_json(text: str, expected: dict[str, Any]) -> None:
    """Lists, maps, numbers and escapes are parsed as Triton does."""

    assert picked(pbtxt.read(text), expected) == expected


def picked(found: Any, wanted: Any) -> Any:
    """The fields of `found` that `wanted` also has."""
    if isinstance(wanted, dict):
        return {key: picked(found[key], each) for key, each in wanted.items()}
    if isinstance(wanted, list):
        return [picked(*each) for each in zip(found, wanted, strict=True)]
    return found


def test_unset_fields_have_defaults() -> None:
    """Unset messages and oneofs are absent, as in Triton's JSON."""

    config = pbtxt.read("input { name: 'a' }")
    assert config["max_batch_size"] == 0
    assert config["input"][0]["data_type"] == "TYPE_INVALID"
    assert "dynamic_batching" not in config


@pytest.mark.parametrize(("text", "expected"), CONFIGS.values(), ids=CONFIGS.keys())
def test_written_config_reads_the_same(text: str, expected: dict[str, Any]) -> None:
    """Writing and reading a config again does not change it."""

    assert pbtxt.read(pbtxt.write(expected)) == pbtxt.read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n max_batchsize: 1", "line 2, column 2: .* has no field named .max_batchsize."),
        ("max_batch_size: many", "line 1, column 17: Couldn't parse integer: many"),
        ("input { data_type: TYPE_X }", "line 1, column 20: .* no value named TYPE_X"),
        ("input { dims: [1", "line 1, column 17: "),
        ("input {", "line 1, column 7: "),
        ("}", "line 1, column 1: Expected identifier"),
        ('name: "x', "line 1, column 7: String missing ending quote"),
        ('name: "a" name: "b"', "line 1, column 17: .* multiple .name. fields"),
        ("{" * 100_000, "line 1, column 1: "),
    ],
)
def test_syntax_error_has_line_and_column(text: str, message: str) -> None:
    """Text that Triton rejects raises a ValueError of one line."""

    with pytest.raises(ValueError, match=f"^{message}") as error:
        pbtxt.read(text)
    assert "\n" not in str(error.value)
