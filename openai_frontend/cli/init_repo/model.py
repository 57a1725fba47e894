"""One model of a repository that is about to be written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RepositoryModel:
    """A model's folder: what is ours in it, and what is NVIDIA's."""

    name: str
    config: Mapping[str, Any]  # of config.pbtxt, in the shape of Triton's JSON
    serves: bool = True  # requests may name it; it is no mere part of another
    options: Mapping[str, Any] = field(default_factory=dict)  # of openai_frontend.yaml
    files: Mapping[str, str] = field(default_factory=dict)  # path within the folder -> text
    nvidia_folder: str | None = None  # where NVIDIA's models have this one's program
    nvidia_files: tuple[str, ...] = ()  # paths within that folder and this one, all needed
