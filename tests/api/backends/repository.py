"""Writes a model repository whose models have the tensors of NVIDIA's."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.api.backends.standins import configs
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import ROOT

WEIGHTS = ROOT / "model_repository" / "demo" / "1" / "weights"
MAX_MODEL_LEN = 2048

CHAT_OPTIONS = f"""\
contract: python
tokenizer: {WEIGHTS}
max_model_len: {MAX_MODEL_LEN}
tensors:
  text_input: QUESTION
  text_output: REPLY
  max_tokens: LIMIT
  temperature: HEAT
"""

MODEL = """\
import sys

sys.path.insert(0, {root!r})

from tests.api.backends.standins.{module} import TritonPythonModel
"""


def write(
    repository: Path,
    name: str,
    module: str,
    config: str,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Writes one model with the class of a module in `standins`; returns its version's folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if module:
        (version / "model.py").write_text(MODEL.format(root=str(ROOT), module=module))
    for file, text in (files or {}).items():
        (version / file).write_text(text)
    return version


def write_tensorrt_llm(repository: Path) -> None:
    """NVIDIA's five: preprocessing, tensorrt_llm, postprocessing, ensemble, tensorrt_llm_bls."""
    engine = _engine(repository)
    tokenizer = {"tokenizer_dir": str(WEIGHTS)}
    write(
        repository,
        "preprocessing",
        "preprocessing",
        configs.pbtxt(
            "preprocessing",
            max_batch_size=8,
            parameters={**tokenizer, "add_special_tokens": "true"},
        ),
    )
    write(
        repository,
        "postprocessing",
        "postprocessing",
        configs.pbtxt(
            "postprocessing",
            max_batch_size=8,
            parameters={**tokenizer, "skip_special_tokens": "true"},
        ),
    )
    write(
        repository,
        "tensorrt_llm",
        "tensorrt_llm",
        configs.pbtxt(
            "tensorrt_llm",
            max_batch_size=8,
            decoupled=True,
            parameters={
                "gpt_model_path": str(engine),
                "max_beam_width": "4",
                "lora_cache_tasks": "2",
            },
        ),
    )
    write(
        repository,
        "ensemble",
        "",
        configs.ensemble(8),
    )
    write(
        repository,
        "tensorrt_llm_bls",
        "tensorrt_llm_bls",
        configs.pbtxt(
            "tensorrt_llm_bls",
            max_batch_size=8,
            decoupled=True,
            parameters={"accumulate_tokens": "true", "tensorrt_llm_model_name": "tensorrt_llm"},
        ),
    )


def _engine(repository: Path) -> Path:
    """An engine's folder: its build config, and here the weights."""
    folder = repository.parent / "engine"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"build_config": {"max_seq_len": MAX_MODEL_LEN, "max_beam_width": 4}})
    )
    (folder / "weights").symlink_to(WEIGHTS)
    return folder


def write_llmapi(repository: Path, name: str, *, decoupled: bool) -> None:
    """TensorRT-LLM's LLM-API model; as NVIDIA ships it, it is not decoupled."""
    said = f"""\
model: {WEIGHTS}
max_seq_len: {MAX_MODEL_LEN}
triton_config:
  max_batch_size: 0
  decoupled: {decoupled}
"""
    config = configs.pbtxt("llmapi")
    write(repository, name, "llmapi", config, {"model.yaml": said})


def write_chat(repository: Path, name: str) -> None:
    """A Python model of text with its own tensor names."""
    parameters = {"weights": str(WEIGHTS)}
    config = configs.pbtxt(configs.CHAT, parameters=parameters)
    write(repository, name, "chat", config)
    (repository / name / "openai_frontend.yaml").write_text(CHAT_OPTIONS)


def write_embedding(repository: Path, name: str) -> None:
    """A Python model of vectors."""
    parameters = {"weights": str(WEIGHTS)}
    config = configs.pbtxt("vllm", parameters=parameters)
    write(repository, name, "embedding", config)
    (repository / name / "openai_frontend.yaml").write_text(f"""\
contract: embeddings
tokenizer: {WEIGHTS}
max_model_len: {MAX_MODEL_LEN}
""")


def write_vllm(repository: Path, name: str, *, adapters: Mapping[str, Path] | None = None) -> None:
    """NVIDIA's vLLM model, with vLLM on the CPU; `adapters` are those of its multi_lora.json."""
    arguments = {
        "model": str(WEIGHTS),
        "max_model_len": MAX_MODEL_LEN,
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 128 << 20,
        "block_size": 32,
        "disable_log_stats": True,
        **({"enable_lora": "true", "max_lora_rank": 8} if adapters else {}),
    }
    files = {"model.json": json.dumps(arguments)}
    if adapters:
        named = {adapter: str(folder) for adapter, folder in adapters.items()}
        files["multi_lora.json"] = json.dumps(named)
    write(repository, name, "", 'backend: "vllm"\ninstance_group [{ kind: KIND_MODEL }]\n', files)


SEES_WITH = {"mllama": "rendered", "qwen2_vl": "its own template", "vila": "no URLs"}


def write_vision(repository: Path, weights: Path) -> Path:
    """Models that see, each with the tensors of one of NVIDIA's, and `weights` as their tokenizer.

    The LLM-API model `llmapi_blind` would drop images. The ensembles have the names of their kinds.
    """
    special = "<|vision|>", "<image>"
    tiny_tokenizer.write(weights, chat_template=tiny_tokenizer.VISION, special_tokens=special)
    (weights / "config.json").write_text(json.dumps({"vision_config": {}}))
    vllm = {"model.json": json.dumps({"model": str(weights), "max_model_len": MAX_MODEL_LEN})}
    write(repository, "nvidia_vllm", "", 'backend: "vllm"\n', vllm)
    for name, sees in (("llmapi", True), ("llmapi_blind", False)):
        said = f"model: {weights}\nmax_seq_len: 99\ntriton_config:\n  multimodal: {sees}\n"
        config = configs.pbtxt("llmapi", decoupled=True)
        write(repository, name, "vision", config, {"model.yaml": said})
    for kind in SEES_WITH:
        built = weights.parent / kind
        built.mkdir()
        (built / "config.json").write_text(json.dumps({"builder_config": {"model_type": kind}}))
        parameters = {"tokenizer_dir": str(weights), "multimodal_model_path": str(built)}
        config = configs.pbtxt(
            "multimodal_ensemble", max_batch_size=8, decoupled=True, parameters=parameters
        )
        write(repository, f"{kind}_step", "vision", config)
        write(repository, kind, "", configs.one_step(f"{kind}_step", "multimodal_ensemble", 8))
    return repository


def write_classifier(
    repository: Path,
    name: str,
    *,
    texts: int = 1,
    scores: Sequence[int] = (3,),
    max_batch_size: int = 0,
    labels: Sequence[str] | None = ("good", "bad", "odd"),
) -> None:
    """A classifier with a file of labels, which needs no options."""
    file = None if labels is None else "labels.txt"
    tensors = configs.classifier(texts=texts, scores=list(scores), labels=file)
    config = configs.pbtxt(tensors, max_batch_size=max_batch_size)
    write(repository, name, "classifier", config)
    if labels is not None:
        (repository / name / "labels.txt").write_text("\n".join(labels) + "\n")


def write_sparse(
    repository: Path, name: str, *, dense: bool = False, indices: str = "INT64"
) -> None:
    """An embedder of sparse vectors, by the names of its outputs."""
    config = configs.pbtxt(configs.sparse(dense=dense, indices=indices))
    write(repository, name, "sparse", config)


def write_whisper(repository: Path, name: str, *, decoupled: bool) -> None:
    """NVIDIA's whisper_bls."""
    config = configs.pbtxt("whisper_bls", max_batch_size=8, decoupled=decoupled)
    write(repository, name, "whisper_bls", config)


def write_speech(repository: Path, name: str, *, decoupled: bool, rate: int = 24_000) -> None:
    """A model that speaks. If decoupled, its voice and its speed have names of its own."""
    tensors = configs.SPEECH if decoupled else configs.ONE_VOICE
    parameters = {"sample_rate": str(rate)}
    config = configs.pbtxt(tensors, max_batch_size=8, decoupled=decoupled, parameters=parameters)
    write(repository, name, "speech", config)
    if decoupled:
        options = "tensors:\n  voice: speaker\n  speed: pace\n"
        (repository / name / "openai_frontend.yaml").write_text(options)


def write_vllm_backend(folder: Path, module: str = "vllm_backend") -> Path:
    """A backend directory with NVIDIA's vLLM backend: one Python program for all its models."""
    (folder / "vllm").mkdir(parents=True)
    program = MODEL.format(root=str(ROOT), module=module)
    (folder / "vllm" / "model.py").write_text(program)
    return folder


def write_quick(repository: Path) -> Path:
    """Writes every stand-in that starts quickly: all except vLLM."""
    repository.mkdir(parents=True, exist_ok=True)
    write_tensorrt_llm(repository)
    write_llmapi(repository, "llmapi", decoupled=True)
    write_llmapi(repository, "llmapi_whole", decoupled=False)
    write_chat(repository, "own_chat")
    write_embedding(repository, "own_vectors")
    return repository
