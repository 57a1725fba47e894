"""A model's config.pbtxt in the shape of the JSON that Triton gives of it, completed as its backend
completes it when the model is loaded. Starts nothing.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai_frontend import yaml_text
from openai_frontend.cli import pbtxt
from openai_frontend.cli.init_repo import vllm
from openai_frontend.errors import ModelUnavailable

Config = dict[str, Any]


def read(folder: Path, version: Path | None) -> Config:
    """The config; all defaults if there is no file. ModelUnavailable where it cannot be read."""
    path = folder / "config.pbtxt"
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        config = pbtxt.read(text)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error
    name = folder.resolve().name
    config["name"] = config["name"] or name
    if config["name"] != name:
        raise ModelUnavailable(
            f"{path}: its name is '{config['name']}', not its folder's, '{name}'"
        )
    complete = _COMPLETED.get(config.get("backend", ""))
    return config if complete is None else complete(config, version)


def _of_python(config: Config, version: Path | None) -> Config:
    """What the LLM API's program sets, by its model.yaml; other programs are not known."""
    path = None if version is None else version / "model.yaml"
    if path is None or not path.is_file():
        return config
    try:
        said = yaml_text.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path}: {' '.join(str(error).split())}") from error
    triton = said.get("triton_config") if isinstance(said, dict) else None
    if not isinstance(triton, dict):
        return config
    try:
        max_batch_size = int(triton.get("max_batch_size", 0))
    except (TypeError, ValueError):
        raise ModelUnavailable(f"{path}: max_batch_size is no number") from None
    return {
        **config,
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": bool(triton.get("decoupled", False))},
    }


_COMPLETED: Mapping[str, Callable[[Config, Path | None], Config]] = {
    "inprocess": lambda config, _: vllm.completed_inprocess(config),
    "vllm": lambda config, _: vllm.completed_nvidias(config),
    "python": _of_python,
}
