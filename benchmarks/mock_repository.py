"""Writes what the benchmarks serve: models of the mock engine, with a small tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks import request

# A real vocabulary: a token for each byte would make five times as many of a long prompt
LONG_TOKENIZER = Path(__file__).parents[1] / "model_repository" / "demo" / "1" / "weights"

_NEVER_S = 3600.0
_LONG_CONTEXT = 4_000_000  # tokens
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% if tools %}<|im_start|>system\nCall as <tool_call>: {{ tools | tojson }}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_THINKING = "{# thinks between <think> and </think> #}" + _CHATML
_CALL = (
    *("<tool_call>", '\n{"name": "', "find", "_person", '", "arguments": ', '{"name": "'),
    *(" token",) * 56,
    *('"}}', "\n</tool_call>"),
)
MOCK = "mock"
_STEP_ENGINE = "benchmarks.step_engine:StepEngine"
# model -> its engine, and what its model.json says beside the tokenizer
_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    request.MODEL: (MOCK, {}),
    request.BY_FOUR_MODEL: (_STEP_ENGINE, {"tokens_per_step": 4}),
    request.PACED_MODEL: (
        MOCK,
        {"tokens_per_second": request.PACE_PER_S, "max_model_len": _LONG_CONTEXT},
    ),
    request.LONG_MODEL: (
        MOCK,
        {"tokenizer": str(LONG_TOKENIZER), "max_model_len": _LONG_CONTEXT},
    ),
    request.EMBEDDING_MODEL: (_STEP_ENGINE, {"dimensions": request.EMBEDDING_DIMENSIONS}),
    request.CALLS_MODEL: (MOCK, {"tokens": _CALL}),
    request.REASONING_MODEL: (MOCK, {"tokens": ("<think>", *(" token",) * 1000)}),
    request.WAITING_MODEL: (MOCK, {"first_token_delay_s": _NEVER_S}),
}


def write(repository: Path) -> Path:
    """All models that a load may name."""
    tokenizer = write_tokenizer(repository.parent / "tokenizer")
    thinking = write_tokenizer(repository.parent / "thinking_tokenizer", _THINKING)
    for name, (engine, arguments) in _MODELS.items():
        own = thinking if name == request.REASONING_MODEL else tokenizer
        write_model(repository / name, engine, {"tokenizer": str(own), **arguments})
    return repository


def write_tokenizer(folder: Path, chat_template: str = _CHATML) -> Path:
    """One token for each byte, and ChatML's; no training, so the same everywhere."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _SPECIAL_TOKENS])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL_TOKENS[0],
        "eos_token": _SPECIAL_TOKENS[2],
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_model(folder: Path, engine: str, arguments: Mapping[str, Any]) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "inprocess"\n'
        f'parameters {{ key: "engine" value: {{ string_value: "{engine}" }} }}\n'
    )
    (version / "model.json").write_text(json.dumps(arguments))
