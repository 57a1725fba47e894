"""The fields of a request type, found by walking its annotations. Lists no field by name.

A union of objects has several kinds. Each kind is a part of the name, taken from its `role` or
`type` (`messages.user.name`). If the kind has a field of the same name, both are one part
(`tools.function.name`).
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel

_DISCRIMINATORS = ("role", "type")
_MARKERS = (Required, NotRequired)
Annotations = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestField:
    """One field, or one kind of value that a field accepts."""

    name: str  # as in marks and on the page
    path: str  # as in the JSON body
    kind: str | None = None  # the value of `type` or `role`, for a kind


def request_fields(request_type: Any) -> list[RequestField]:
    """Every field of a request type in declaration order, nested fields after their parent."""
    return list(_of_object(request_type, "", "", None))


def _of_object(of: Any, name: str, path: str, kind: str | None) -> Iterator[RequestField]:
    for field, annotation in _annotations(of).items():
        inner_path = f"{path}.{field}" if path else field
        if field in _DISCRIMINATORS:
            continue
        inner_name = name if field == kind else f"{name}.{field}" if name else field
        if inner_name != name:
            yield RequestField(inner_name, inner_path)
        yield from _of_value(annotation, inner_name, inner_path)


def _of_value(annotation: Any, name: str, path: str) -> Iterator[RequestField]:
    leaves = list(_leaves(annotation))
    objects = [leaf for leaf in leaves if _annotations(leaf)]
    words = [word for leaf in leaves if _is_literal(leaf) for word in get_args(leaf)]
    if objects and str not in leaves:
        yield from (RequestField(f"{name}.{word}", path, str(word)) for word in words)
    for each in objects:
        kind = _kind(each) if len(objects) > 1 else None
        if kind is None:
            yield from _of_object(each, name, path, None)
        else:
            yield RequestField(f"{name}.{kind}", path, kind)
            yield from _of_object(each, f"{name}.{kind}", path, kind)


def _kind(of: Any) -> str | None:
    """The only value that an object's `role` or `type` may have."""
    annotations = _annotations(of)
    for field in _DISCRIMINATORS:
        if field in annotations:
            words = get_args(next(_leaves(annotations[field])))
            return str(words[0]) if len(words) == 1 else None
    return None


def _annotations(of: Any) -> Annotations:
    """The fields of a TypedDict or pydantic model; empty for any other type."""
    if isinstance(of, type) and issubclass(of, BaseModel):
        return {name: field.annotation for name, field in of.model_fields.items()}
    if typing_extensions.is_typeddict(of):
        return typing_extensions.get_type_hints(of)
    return {}


def _is_literal(annotation: Any) -> bool:
    return all(get_origin(leaf) is Literal for leaf in _leaves(annotation))


def _leaves(annotation: Any) -> Iterator[Any]:
    """The element types of an annotation, without unions, sequences, mappings and metadata."""
    if isinstance(annotation, typing_extensions.TypeAliasType):
        annotation = annotation.__value__
    if annotation is types.NoneType:
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal or not arguments:
        yield annotation
    elif origin is typing_extensions.Annotated or origin in _MARKERS:
        yield from _leaves(arguments[0])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _leaves(argument)
    elif issubclass(origin, Mapping):
        yield from _leaves(arguments[1])
    else:
        yield from _leaves(arguments[0])
