"""Ensembles and the models in them, by their configs as Triton prints them."""

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]


def steps(config: Config) -> set[str]:
    """The models that an ensemble calls itself; empty for other models."""
    if "ensemble_scheduling" not in config:
        return set()
    return {step["model_name"] for step in config["ensemble_scheduling"]["step"]}


def with_ensembles(configs: Mapping[str, Config], parts: set[str]) -> set[str]:
    """Return these models and the ensembles that contain one, also by way of other ensembles."""
    users, found = set[str](), parts
    while found:
        users |= found
        found = {name for name, config in configs.items() if steps(config) & users} - users
    return users


def parts(name: str, config_of: Callable[[str], Config]) -> set[str]:
    """Return the models that an ensemble contains, also by way of other ensembles."""
    known, found = set[str](), steps(config_of(name))
    while found:
        known |= found
        found = {part for each in found for part in steps(config_of(each))} - known
    return known
