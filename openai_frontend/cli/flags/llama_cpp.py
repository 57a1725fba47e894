"""Flags of llama.cpp's `llama-server`: what to use here. Their meaning is close, not the same."""

from collections.abc import Sequence

from openai_frontend.cli.flags.rules import (
    Reading,
    Rule,
    instead,
    not_needed,
    refused,
    renamed,
)

_WEIGHTS = "pass MODEL without a flag: openai-frontend serve ORG/MODEL, or a folder"
_ADAPTERS = (
    "use --engine-arg enable_lora=true, and --model-option NAME:adapters=ADAPTER=FOLDER "
    "(docs/lora.md)"
)
_ON_GPU = "vLLM puts the whole model on the GPU"
_THREADS = "set the environment variable OMP_NUM_THREADS"
_SAMPLING = "set it in requests; for a default, use --engine-arg override_generation_config={...}"


def _engine(argument: str) -> Rule:
    return instead(renamed("--engine-arg", lambda value: f"{argument}={value}"))


def _pooling() -> Rule:
    def read(values: Sequence[str]) -> Reading:
        return Reading(("--engine-arg", "runner=pooling"))

    return instead(Rule("none", read))


def _output_tokens() -> Rule:
    return instead(renamed("--model-option", lambda value: f"*:max_output_tokens={value}"))


def _debug() -> Rule:
    return instead(Rule("none", lambda _: Reading(("--log-level", "debug"))))


FLAGS: dict[str, Rule] = {
    # models
    "-m": refused(_WEIGHTS),
    "--hf-repo": refused(_WEIGHTS),
    "-hf": refused(_WEIGHTS),
    "-hfr": refused(_WEIGHTS),
    "--alias": instead(renamed("--served-model-name")),
    "-a": instead(renamed("--served-model-name")),
    "--models-dir": instead(renamed("--model-repository")),
    "--models-max": instead(renamed("--max-loaded-models")),
    "--lora": refused(_ADAPTERS),
    # engine
    "-c": _engine("max_model_len"),
    "--ctx-size": _engine("max_model_len"),
    "-np": _engine("max_num_seqs"),
    "--parallel": _engine("max_num_seqs"),
    "-b": _engine("max_num_batched_tokens"),
    "--batch-size": _engine("max_num_batched_tokens"),
    "-s": _engine("seed"),
    "-ctk": _engine("kv_cache_dtype"),
    "--cache-type-k": _engine("kv_cache_dtype"),
    "-ctv": _engine("kv_cache_dtype"),
    "--cache-type-v": _engine("kv_cache_dtype"),
    "-ts": refused("use --tensor-parallel-size with the number of GPUs"),
    "--tensor-split": refused("use --tensor-parallel-size with the number of GPUs"),
    "-ngl": not_needed(_ON_GPU, "one"),
    "--gpu-layers": not_needed(_ON_GPU, "one"),
    "--n-gpu-layers": not_needed(_ON_GPU, "one"),
    "-t": refused(_THREADS),
    "--threads": refused(_THREADS),
    "--embedding": _pooling(),
    "--embeddings": _pooling(),
    "--reranking": _pooling(),
    # prompts and output
    "--predict": _output_tokens(),
    "--n-predict": _output_tokens(),
    "--temp": refused(_SAMPLING),
    "--top-k": refused(_SAMPLING),
    "--top-p": refused(_SAMPLING),
    "--min-p": refused(_SAMPLING),
    "--jinja": not_needed("the model's own template is always rendered"),
    "--chat-template-file": instead(renamed("--chat-template")),
    "--reasoning-format": refused("use --reasoning-parser; without it, the template decides"),
    # server
    "--api-key-file": refused("use --keys-file (docs/authentication.md)"),
    "--ssl-key-file": instead(renamed("--tls-key")),
    "--ssl-cert-file": instead(renamed("--tls-certificate")),
    "-to": instead(renamed("--request-timeout-s")),
    "--timeout": instead(renamed("--request-timeout-s")),
    "-v": _debug(),
    "--verbose": _debug(),
}
