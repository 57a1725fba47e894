"""The command line of the scripts that train demo models: a flag for each field of a recipe."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

Recipe = TypeVar("Recipe")


def parse_recipe(
    recipe: type[Recipe], description: str | None, weights: Path, **counts: int
) -> tuple[Recipe, argparse.Namespace]:
    """The recipe of the flags, and all arguments.

    `weights` is the default of `--output`; `counts` are defaults of flags that only affect the
    score.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=weights, help="folder of the weights")
    defaults: dict[str, Any] = {each.name: each.default for each in fields(recipe)}  # type: ignore[arg-type]  # a dataclass
    for name, default in {**counts, **defaults}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    return recipe(**{name: getattr(arguments, name) for name in defaults}), arguments
