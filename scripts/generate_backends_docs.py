"""Writes docs/backends.md: the fields that each kind of model supports, from its contract.

The models are those of the tests, with the tensors of NVIDIA's models.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openai_frontend.cli.model_directory import read_config
from openai_frontend.config import model_options
from openai_frontend.contracts.derived_outputs import DERIVED
from openai_frontend.contracts.select import ContractOptions, SelectedContracts, select_contracts
from openai_frontend.media.modalities import ImageSupport
from tests.api.backends import repository

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "backends.md"
TEXT = Path(__file__).with_name("backends_page.md")

# Field of a request -> what a contract calls what it needs
FIELDS: Mapping[str, str] = {
    "stream": "stream",
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "include_stop_str_in_output": "include_stop_str_in_output",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "bad_words": "bad_words",
    "allowed_token_ids": "allowed_token_ids",
    "logit_bias": "logit_bias",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "response_format": "structured_outputs",
    "tool_choice": "structured_outputs.json",  # for values that require a call
    "use_beam_search": "beam_width",
    "skip_special_tokens": "skip_special_tokens",
    "return_token_ids": "return_token_ids",
    "priority": "priority",
    "cache_salt": "cache_salt",
}
# Features that are not request fields
BESIDE: Mapping[str, str] = {
    "images, if the model sees": "images",
    "`detail` of images": "image_detail",
    "prompts as token ids": "prompt_token_ids",
    "LoRA adapters": "adapter",
    "counts while streaming": "running_counts",
}


class _Vocabulary:
    """A tokenizer for models that need one; the page tokenizes no text."""

    def ids(self, text: str, /) -> Sequence[int]:
        return []

    def token_text(self, token_id: int, /) -> str | None:
        return None

    def unprefixed(self, text: str, /) -> str:
        return text

    def plain(self, text: str, /) -> str:
        return text


# Models of the tests and the headings of their columns
KINDS: Mapping[str, str] = {
    "demo": "vLLM in process",
    "nvidia_vllm": "NVIDIA's vLLM",
    "ensemble": "TensorRT-LLM `ensemble`",
    "tensorrt_llm_bls": "TensorRT-LLM `tensorrt_llm_bls`",
    "mllama": "TensorRT-LLM's multimodal `ensemble`",
    "llmapi": "LLM-API, decoupled",
    "llmapi_whole": "LLM-API as shipped",
    "own_chat": "own Python model (example)",
}


def kinds() -> dict[str, SelectedContracts]:
    """The models of the tests by name."""
    with tempfile.TemporaryDirectory() as scratch:
        models = repository.write_quick(Path(scratch) / "models")
        repository.write_vllm(models, "nvidia_vllm")
        (models / "demo").symlink_to(ROOT / "model_repository" / "demo")
        vision = repository.write_vision(Path(scratch) / "vision", Path(scratch) / "weights")
        for name in ("mllama", "mllama_step"):
            (models / name).symlink_to(vision / name)
        return {name: chosen(models / name) for name in KINDS}


def chosen(folder: Path) -> SelectedContracts:
    """The contracts of a model with a tokenizer. Raises ModelUnavailable if it has none."""
    said = model_options.read(folder)
    config = read_config(folder, folder / "1")
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return select_contracts(
        config,
        options=ContractOptions(name=said.contract, tensors=said.tensors, images=ImageSupport()),
        decoupled=any(map(_decoupled, (config, *(_beside(folder, step) for step in steps)))),
        vocabulary=_Vocabulary(),
    )


def _beside(folder: Path, step: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of a model that an ensemble calls."""
    called = folder.parent / str(step["model_name"])
    return read_config(called, called / "1")


def _decoupled(config: Mapping[str, Any]) -> bool:
    """An ensemble is decoupled if one of its models is."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


def honours(kind: SelectedContracts, field: str) -> bool:
    """Whether models of this kind support a field of FIELDS or BESIDE."""
    contract = kind.generation
    return contract is not None and contract.supports({**FIELDS, **BESIDE}[field])


def page() -> str:
    made = kinds()
    return TEXT.read_text(encoding="utf-8").format(
        fields=_table(made), derived=_derived(made), contracts=_contracts(made)
    )


def _table(made: Mapping[str, SelectedContracts]) -> str:
    names = [*(f"`{field}`" for field in FIELDS), *BESIDE]
    rows = [
        [name, *("yes" if honours(kind, field) else "no" for kind in made.values())]
        for name, field in zip(names, [*FIELDS, *BESIDE], strict=True)
    ]
    return _rows(["", *KINDS.values()], rows)


def _contracts(made: Mapping[str, SelectedContracts]) -> str:
    return _rows(
        ["model", "contract", "chosen because"],
        [[KINDS[name], f"`{kind.name}`", kind.reason] for name, kind in made.items()],
    )


def _derived(made: Mapping[str, SelectedContracts]) -> str:
    users = {
        what: [
            KINDS[name]
            for name, kind in made.items()
            if kind.generation is not None and what in kind.generation.derives
        ]
        for what in DERIVED
    }
    return _rows(
        ["derived", "how", "for"],
        [[f"`{what}`", how, ", ".join(users[what]) or "-"] for what, how in DERIVED.items()],
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
