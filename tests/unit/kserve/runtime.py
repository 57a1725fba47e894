"""In-process models of two kinds: those with an engine, and those that echo their inputs."""

from pathlib import Path
from typing import Any

from openai_frontend.engines import loader
from openai_frontend.engines.loader import interrupt_loads
from tests.unit.triton import echo_runtime

__all__ = ["interrupt_loads", "load"]


def load(name: str, version: int, folder: Path, config: dict[str, Any], loop: Any) -> Any:
    """An engine if the config names one, else an echo model."""
    module = loader if "engine" in config.get("parameters", {}) else echo_runtime
    return module.load(name, version, folder, config, loop)
