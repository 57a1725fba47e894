"""JSON Schema's published test suite (`tests/data/json_schema_test_suite`)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.gateway_process import ROOT

_SUITE = ROOT / "tests" / "data" / "json_schema_test_suite" / "draft2020-12.json"


@dataclass(frozen=True)
class Case:
    """A schema with values that match it and values that do not."""

    name: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]

    def arguments(self) -> dict[str, Any]:
        """The schema of a function's arguments, in which `value` must match the case's schema."""
        return {
            "type": "object",
            "properties": {"value": _without_id(_moved(self.schema))},
            "required": ["value"],
            "additionalProperties": False,
        }


def cases() -> Iterator[Case]:
    """Return all cases of the suite."""
    files: Mapping[str, Any] = json.loads(_SUITE.read_text(encoding="utf-8"))
    for name, groups in files.items():
        for group in groups:
            values = group["tests"]
            yield Case(
                name=f"{name}: {group['description']}",
                schema=group["schema"],
                valid=[each["data"] for each in values if each["valid"]],
                invalid=[each["data"] for each in values if not each["valid"]],
            )


def _without_id(schema: Any) -> Any:
    """The schema without its `$id`, which would change the base of its references."""
    return (
        {key: schema[key] for key in schema if key != "$id"} if isinstance(schema, dict) else schema
    )


def _moved(part: Any) -> Any:
    """The schema with its references adjusted to its position as a property."""
    if isinstance(part, list):
        return [_moved(each) for each in part]
    if not isinstance(part, dict):
        return part
    moved = {key: _moved(value) for key, value in part.items()}
    if isinstance(part.get("$ref"), str) and part["$ref"].startswith("#"):
        moved["$ref"] = f"#/properties/value{part['$ref'][1:]}"
    return moved
