"""Reads and writes protobuf's text format, in which `config.pbtxt` is written, without the schema:
a field that is read is a list of all its values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = dict[str, list[Any]]

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[\w.+\-]+)
      | (?P<mark>[{}<>\[\]:])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED = str.maketrans(
    {"\\": "\\\\", '"': '\\"'} | {code: f"\\{letter}" for letter, code in _ESCAPES.items()}
)
_CLOSES = {"{": "}", "<": ">"}
_MAX_DEPTH = 32

# Fields of a model's config whose values are no plain strings, numbers or messages
_ENUMS = {"data_type", "kind"}
MAPS = {"parameters", "input_map", "output_map"}


def read(text: str) -> Message:
    """The message that the text spells. ValueError with a line number where it spells none."""
    reader = _Reader(text)
    message = reader.message("", 0)
    return message


def write(config: Mapping[str, Any]) -> str:
    """The text of a model's config, which has the shape of the JSON that Triton gives of it."""
    return "".join(f"{line}\n" for line in _lines(config))


def _lines(message: Mapping[str, Any]) -> Iterator[str]:
    for name, value in message.items():
        if name in MAPS:
            for key, entry in value.items():
                yield from _field(name, {"key": key, "value": entry})
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from _list(name, value)
        else:
            yield from _field(name, value)


def _field(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name}: {_scalar(name, value)}"
        return
    yield f"{name} {{"
    yield from (f"  {line}" for line in _lines(value))
    yield "}"


def _list(name: str, values: Sequence[Any]) -> Iterator[str]:
    if not any(isinstance(value, Mapping) for value in values):
        yield f"{name}: [{', '.join(_scalar(name, value) for value in values)}]"
        return
    for value in values:
        yield from _field(name, value)


def _scalar(name: str, value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and name not in _ENUMS:
        return f'"{value.translate(_ESCAPED)}"'
    return str(value)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._all()
        self._next = next(self._tokens)

    def _all(self) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            self._line = self._text.count("\n", 0, at) + 1
            if found is None:
                raise self._wrong(self._text[at])
            at = found.end()
            if found.lastgroup != "space":
                yield str(found.lastgroup), found.group()
        yield "end", ""

    def _take(self) -> tuple[str, str]:
        taken = self._next
        if taken[0] != "end":
            self._next = next(self._tokens)
        return taken

    def _accept(self, mark: str) -> bool:
        return self._next == ("mark", mark) and bool(self._take())

    def _wrong(self, found: str) -> ValueError:
        return ValueError(f"line {self._line}: unexpected {found or 'end'}")

    def message(self, closes: str, depth: int) -> Message:
        """All fields up to the closing mark; "" stands for the text's end."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"line {self._line}: it nests too deep")
        fields: Message = {}
        while self._next != (("mark", closes) if closes else ("end", "")):
            kind, name = self._take()
            if kind != "word":
                raise self._wrong(name)
            self._accept(":")
            fields.setdefault(name, []).extend(self._values(depth))
        self._take()
        return fields

    def _values(self, depth: int) -> list[Any]:
        if not self._accept("["):
            return [self._value(depth)]
        values = []
        while not self._accept("]"):
            values.append(self._value(depth))
        return values

    def _value(self, depth: int) -> Any:
        kind, text = self._take()
        if text in _CLOSES and kind == "mark":
            return self.message(_CLOSES[text], depth + 1)
        if kind == "word":
            return text
        if kind != "string":
            raise self._wrong(text)
        value = _unquoted(text)
        while self._next[0] == "string":  # neighbours are one string
            value += _unquoted(self._take()[1])
        return value


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found.group(1), found.group(1)), text[1:-1])
