"""Validation of an adapter's files."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from openai_frontend.models.lora.files import (
    FILES,
    NAME,
    InvalidLoRA,
    Kind,
    LoRARequirements,
    check,
    stamp,
)
from tests.fast.lora.files import write_peft, write_tensorrt_llm

PEFT = LoRARequirements(kind="peft", max_rank=16, hidden_size=8)
TENSORRT_LLM = LoRARequirements(kind="tensorrt_llm")


def edited(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Puts something else into a file."""

    def edit(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)

    return edit


def config(**fields: object) -> Callable[[Path], None]:
    return edited("adapter_config.json", json.dumps(fields))


def cut(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def header(**tensors: object) -> Callable[[Path], None]:
    text = json.dumps(tensors).encode()
    return edited("adapter_model.safetensors", struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("name", ["pirate", "a", "0", "v1.2_b-c", "x" * 128])
def test_valid_names(name: str) -> None:
    """Letters, digits, and . _ - after the first character."""
    assert NAME.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b",
        "a\0",
        "a:b",
        "a@2",
        "-a",
        "é",
        "a\n",
        "x" * 129,
    ],
)
def test_invalid_names(name: str) -> None:
    """No path components, and no delimiters of model names."""
    assert not NAME.fullmatch(name)


def test_valid_adapters(tmp_path: Path) -> None:
    """Files as PEFT and TensorRT-LLM write them pass."""
    check(write_peft(tmp_path / "peft"), PEFT)
    check(write_tensorrt_llm(tmp_path / "tensorrt_llm"), TENSORRT_LLM)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (edited("adapter_config.json", "{"), "adapter_config.json is not JSON"),
        (edited("adapter_config.json", b"\xff"), "adapter_config.json is not JSON"),
        (edited("adapter_config.json", "[]"), "adapter_config.json is not a JSON object"),
        (config(r=4, peft_type="IA3"), "peft_type is 'IA3'"),
        (config(), "the rank r must be a positive integer"),
        (config(r=True), "the rank r must be a positive integer"),
        (config(r=17), "its rank of 17 exceeds the model's max_lora_rank of 16"),
        (
            config(r=4, rank_pattern={"q_proj": 32}),
            "its rank of 32 exceeds the model's max_lora_rank of 16",
        ),
        (cut, "is incomplete; it may still be uploading"),
        (edited("adapter_model.safetensors", b""), "is not a valid safetensors file"),
        (edited("adapter_model.safetensors", b"\xff" * 64), "is not a valid safetensors file"),
        (edited("adapter_model.safetensors", b"\x80\x02pickle"), "is not a valid safetensors file"),
        (header(a=1), "is not a valid safetensors file"),
        (header(a={"shape": [1], "data_offsets": [0]}), "is not a valid safetensors file"),
        (header(a={"shape": ["x"], "data_offsets": [0, 4]}), "is not a valid safetensors file"),
    ],
)
def test_invalid_peft_adapter(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    """Each reason names the file or field, and no path."""
    folder = write_peft(tmp_path / "adapter")
    spoil(folder)

    with pytest.raises(InvalidLoRA, match=reason) as refused:
        check(folder, PEFT)
    assert str(tmp_path) not in str(refused.value)


def test_adapter_of_another_model(tmp_path: Path) -> None:
    """Detected by the hidden size, if the base's is known."""
    folder = write_peft(tmp_path / "adapter", hidden_size=16)

    with pytest.raises(InvalidLoRA, match="a hidden size of 16; the model"):
        check(folder, PEFT)
    check(folder, LoRARequirements(kind="peft", max_rank=16))


@pytest.mark.parametrize("kind", ["peft", "tensorrt_llm"])
def test_missing_file(tmp_path: Path, kind: Kind) -> None:
    """The reason names it; a pickled adapter_model.bin is no replacement."""
    write_peft(tmp_path)
    write_tensorrt_llm(tmp_path)
    weights = FILES[kind][1]
    (tmp_path / weights).rename(tmp_path / "adapter_model.bin")

    with pytest.raises(InvalidLoRA, match=f"{weights} is missing"):
        stamp(tmp_path, kind)


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        (
            "model.lora_weights.npy",
            numpy.zeros((1, 3, 6)),
            r"weights.npy has the shape \[1, 3, 6\]",
        ),
        ("model.lora_weights.npy", numpy.zeros(6), r"weights.npy has the shape \[6\]"),
        ("model.lora_config.npy", numpy.zeros((1, 2, 9)), r"config.npy has the shape \[1, 2, 9\]"),
        ("model.lora_config.npy", numpy.array([{}]), "not a valid .npy file"),
    ],
)
def test_invalid_tensorrt_llm_adapter(
    tmp_path: Path, name: str, array: numpy.ndarray, reason: str
) -> None:
    """Shapes that do not match, and arrays of Python objects, which are never unpickled."""
    folder = write_tensorrt_llm(tmp_path)
    numpy.save(folder / name, array, allow_pickle=True)

    with pytest.raises(InvalidLoRA, match=reason):
        check(folder, TENSORRT_LLM)


def test_stamp_identifies_content(tmp_path: Path) -> None:
    """A rewritten file has another stamp, even with the same size."""
    before = stamp(write_peft(tmp_path), "peft")
    again = stamp(tmp_path, "peft")
    weights = tmp_path / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    (tmp_path / "other").write_bytes(b"")  # takes the number that has become free
    weights.write_bytes(content)

    assert before == again
    assert stamp(tmp_path, "peft") != before
