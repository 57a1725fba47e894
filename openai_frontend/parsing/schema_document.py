"""A schema as a document, in which references find their targets. Never fetches anything."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDS = ("$id", "id", "$anchor", "$dynamicAnchor")
_MAX_INDEXED = 4096  # subschemas to search for names that references use


class SchemaDocument:
    """A schema, in which references find their targets."""

    def __init__(self, root: object) -> None:
        self.root = root
        self._index: dict[str, object] | None = None

    def target(self, reference: object) -> object:
        """The target of a reference; None if it is not within the schema."""
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            return self._named().get(pointer)
        return _at(self._named().get(base) if base else self.root, pointer)

    def _named(self) -> Mapping[str, object]:
        """Subschemas by the names that they give themselves."""
        if self._index is None:
            self._index = {}
            for node in _nodes(self.root):
                for name in (node[key] for key in _IDS if isinstance(node.get(key), str)):
                    self._index.setdefault(name.strip("#"), node)
        return self._index


def _at(resource: object, pointer: str) -> object:
    """The part of a schema at a JSON pointer."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(resource, Mapping):
            resource = resource.get(key)
        elif isinstance(resource, list) and key.isdecimal() and int(key) < len(resource):
            resource = resource[int(key)]
        else:
            return None
    return resource


def _nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """The schema's objects, the outer ones first."""
    waiting = deque((schema,))
    for _ in range(_MAX_INDEXED):
        if not waiting:
            return
        node = waiting.popleft()
        if isinstance(node, Mapping):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
