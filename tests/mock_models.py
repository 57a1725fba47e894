"""Model folders with the mock engine, and a core that serves them."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai_frontend.config import model_options
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.triton import Options, Server
from tests.fast.prompting import tiny_tokenizer

if TYPE_CHECKING:  # imports NumPy, whose memory a sanitizer reports as leaks in the core's tests
    from openai_frontend.models.registry import ModelRegistry

CONFIG = """
backend: "inprocess"
parameters { key: "engine" value: { string_value: "mock" } }
"""

ENSEMBLE = """
platform: "ensemble"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "%s" data_type: %s dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "part"
  model_version: -1
  input_map { key: "text_input" value: "text_input" }
  output_map { key: "%s" value: "%s" }
} ] }
"""


def write(repository: Path, name: str, *, config: str = CONFIG, **arguments: Any) -> Path:
    """A model folder; `arguments` are the mock engine's settings."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    (version / "model.json").write_text(json.dumps(arguments))
    return version


def write_ensemble(
    repository: Path,
    name: str,
    *,
    output: tuple[str, str] = ("text_output", "TYPE_STRING"),
    extra: str = "",
) -> None:
    """An ensemble of the step `part` with one of its outputs; `extra` is added to its config."""
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(
        ENSEMBLE % (*output, output[0], output[0]) + extra
    )


def write_with_tokenizer(repository: Path, name: str, **arguments: Any) -> Path:
    """A model folder with a tokenizer and a ChatML template."""
    version = write(repository, name, tokenizer="./tokenizer", **arguments)
    return tiny_tokenizer.write(version / "tokenizer")


def write_with_turns(
    repository: Path,
    name: str,
    turns: Sequence[Mapping[str, Any]],
    *,
    chat_template: str = tiny_tokenizer.QWEN,
    **arguments: Any,
) -> Path:
    """A model folder with a script, and Qwen3's markup for tools and reasoning."""
    settings: dict[str, Any] = {"max_model_len": 200_000, "turns": turns, **arguments}
    version = write(repository, name, tokenizer="./tokenizer", **settings)
    return tiny_tokenizer.write(
        version / "tokenizer",
        chat_template=chat_template,
        added_tokens=tiny_tokenizer.QWEN_TOKENS,
    )


def write_with_images(repository: Path, name: str, **arguments: Any) -> Path:
    """A model folder whose answer describes the images: `png 2x3 auto 0123abcd; ...`."""
    settings: dict[str, Any] = {
        "images_per_prompt": 16,
        "describe_images": True,
        "answer_tokens": 1,
        **arguments,
    }
    version = write(repository, name, tokenizer="./tokenizer", **settings)
    special = "<|vision|>", "<image>", "<|audio|>"
    return tiny_tokenizer.write(
        version / "tokenizer", chat_template=tiny_tokenizer.VISION, special_tokens=special
    )


def write_with_media(repository: Path, name: str, **arguments: Any) -> Path:
    """The same, which describes audio files too: `wav 1234 0123abcd`, with characters of base64."""
    audio = {"audio_files_per_prompt": 4, "describe_audio": True}
    return write_with_images(repository, name, **audio, **arguments)


@asynccontextmanager
async def serving(
    repository: Path,
    *,
    settings: Mapping[str, ModelOptions] | None = None,
    chat_templates: Mapping[str, str] | None = None,
    tool_call_parser: Mapping[str, str] | None = None,
    reasoning_parser: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator["ModelRegistry"]:
    """A registry on a running core that has read the models."""
    from openai_frontend.models.loader import ModelLoader
    from openai_frontend.models.registry import ModelRegistry

    server = Server(Options(model_repositories=[repository], **options))
    by_model = model_options.by_model(
        settings or {},
        chat_template=chat_templates or {},
        tool_call_parser=tool_call_parser or {},
        reasoning_parser=reasoning_parser or {},
    )
    registry = ModelRegistry(server, ModelLoader(server), options=by_model)
    await server.start()
    try:
        await registry.refresh()
        yield registry
    finally:
        await server.stop()
        registry.close()
