"""Blocks of a user's message or a result as texts and places of images."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.dialects.messages.tool_list import referenced_tool
from openai_frontend.serving.request.client_json import client_json
from openai_frontend.serving.request.content_parts import check_alone
from openai_frontend.serving.request.media_parts import MediaPart

Block = Mapping[str, Any]
Part = Mapping[str, Any]

IMAGE: Part = {"type": "image"}  # a template gets only the place of an image
# Type of a block -> its member with content
_CONTENTS = {"text": ("text",), "image": ("source",), "document": ("source",)}
_LONGEST_NOTE = 2000  # characters of what another server's tool has returned
# Members of a block that say nothing to a model
_NOT_NOTED = frozenset({"type", "id", "tool_use_id", "cache_control", "caller"})


class BlockReader:
    """Reads blocks, and gathers their images in order."""

    def __init__(self, definitions: Mapping[str, str] = MappingProxyType({})) -> None:
        """`definitions`: the texts of deferred tools by name."""
        self.media: list[MediaPart] = []
        self._definitions = definitions

    def parts(self, block: Block, place: str) -> list[Part]:
        """The texts and images of a block."""
        check_alone(block, place, _CONTENTS)
        match block["type"]:
            case "text":
                return [block]
            case "image":
                return [self._image(block["source"], place)]
            case "document":
                return self._document(block, place)
            case "search_result":
                head = f"{block['title']} ({block['source']})"
                return [_text("\n".join([head, *(each["text"] for each in block["content"])]))]
            case "tool_reference" | "tool_addition":
                return [_text(self._tool(block))]
            case _:
                return [_text(note(block))]

    def _tool(self, block: Block) -> str:
        """The definition of a deferred tool, or a note."""
        name = referenced_tool(block)
        if name is not None and name in self._definitions:
            return self._definitions[name]
        return f"[tool {name}]" if block["type"] == "tool_reference" else note(block)

    def result(self, block: Block, place: str) -> list[Part]:
        """The texts and images of the result of a call."""
        return self._all(block.get("content") or "", f"{place}.content")

    def _all(self, content: str | Sequence[Block], place: str) -> list[Part]:
        if isinstance(content, str):
            return [_text(content)]
        return [
            part for at, block in enumerate(content) for part in self.parts(block, f"{place}[{at}]")
        ]

    def _image(self, source: Block, place: str) -> Part:
        match source["type"]:
            case "base64":
                url = f"data:{source['media_type']};base64,{source['data']}"
            case "url":
                url = source["url"]
            case _:
                _refuse_file(f"{place}.source", "an image as base64")
        image = {"url": url, "detail": "auto"}
        self.media.append(MediaPart({"type": "image_url", "image_url": image}, place))
        return IMAGE

    def _document(self, block: Block, place: str) -> list[Part]:
        place = f"{place}.source"
        source = block["source"]
        match source["type"]:
            case "text":
                parts = [_text(source["data"])]
            case "content":
                parts = self._all(source["content"], f"{place}.content")
            case "base64" if source["media_type"].startswith("text/"):
                parts = [_text(_decoded(source["data"], f"{place}.data"))]
            case "base64":
                _refuse_type(f"{place}.media_type", source["media_type"])
            case _:
                _refuse_file(place, "a document's text")
        heads = [block[name] for name in ("title", "context") if block.get(name)]
        return [*map(_text, heads), *parts]


def note(block: Block) -> str:
    """A short text for what another server did in an earlier turn."""
    kind = str(block["type"])[:64]
    if kind == "compaction" and isinstance(summary := block.get("content"), str):
        return summary
    return f"[{kind} {client_json(_shown(block)).decode()[:_LONGEST_NOTE]}]"


def _shown(block: Block) -> dict[str, Any]:
    return {
        name: [_shown(each) if isinstance(each, dict) else each for each in value]
        if isinstance(value, list)
        else value
        for name, value in block.items()
        if name not in _NOT_NOTED and not name.startswith("encrypted")
    }


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _decoded(data: str, place: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        message = f"Invalid '{place}': expected UTF-8 text in base64."
        raise InvalidRequest(message, param=place) from None


def _refuse_type(place: str, media_type: str) -> NoReturn:
    message = (
        f"Unsupported value: '{place}': this server reads no documents of type "
        f"'{media_type[:64]}'. Send the document's text."
    )
    raise InvalidRequest(message, param=place, code="unsupported_value")


def _refuse_file(place: str, instead: str) -> NoReturn:
    message = (
        f"Unsupported value: '{place}': this server stores no files, and fetches no documents. "
        f"Send {instead}."
    )
    raise InvalidRequest(message, param=place, code="unsupported_value")
