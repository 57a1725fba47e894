"""Forms with a file, as OpenAI's audio routes take them. Nothing is written to disk."""

import asyncio
import logging
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from openai_frontend.errors import InvalidRequest
from openai_frontend.routers.request import read_body

# It logs a line for each malformed body, which the response already reports
logging.getLogger("python_multipart").setLevel(logging.ERROR)

MAX_FIELDS = 64
MAX_FIELD_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024  # of one field
MAX_BOUNDARY_BYTES = 256  # RFC 2046 allows 70
_STEP = 256 * 1024  # bytes parsed before others may run
_NOT_MULTIPART = "Send the request body as 'multipart/form-data'."


# Lists for names that end in `[]`, which is left out here
Fields = dict[str, str | list[str]]


@dataclass(slots=True)
class Form:
    """The fields of a form, and its file."""

    fields: Fields = field(default_factory=dict)
    file: bytes | None = None


async def read_form(request: Request) -> Form:
    """The form of a request. Raises InvalidRequest."""
    boundary = _boundary(request.headers.get("content-type", ""))
    parser = FormParser(boundary)
    body = memoryview(await read_body(request.receive))
    try:
        for start in range(0, len(body), _STEP):
            parser.feed(bytes(body[start : start + _STEP]))
            await asyncio.sleep(0)
        return parser.finish()
    finally:
        parser.close()


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise InvalidRequest(_NOT_MULTIPART, code="unsupported_content_type")
    if not (boundary := options.get(b"boundary")):
        raise _unparsed("its Content-Type has no boundary")
    if len(boundary) > MAX_BOUNDARY_BYTES:
        raise _unparsed(f"its boundary has more than {MAX_BOUNDARY_BYTES} bytes")
    return boundary


class FormParser:
    """Parses a form piece by piece. Raises InvalidRequest."""

    def __init__(self, boundary: bytes) -> None:
        callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._named,
            "on_part_data": self._add,
            "on_part_end": self._end,
            "on_end": self._finished,
        }
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        self._form = Form()
        self._fields = 0
        self._complete = False

    def feed(self, data: bytes) -> None:
        """Parse the next piece of the body."""
        try:
            self._parser.write(data)
        except FormParserError:
            raise _unparsed("it is malformed") from None

    def finish(self) -> Form:
        """The form, at the end of the body."""
        if not self._complete:
            raise _unparsed("it ends within a field")
        return self._form

    def close(self) -> None:
        """Break the cycle with the parser, which would keep the file until a collection."""
        del self._parser

    def _begin(self) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise _unparsed(f"it has more than {MAX_FIELDS} fields")
        self._header = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._value = bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._add_header(0, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._add_header(1, data[start:end])

    def _add_header(self, at: int, piece: bytes) -> None:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise _unparsed(f"a field has more than {MAX_HEADER_BYTES} bytes of headers")
        self._header[at].extend(piece)

    def _header_end(self) -> None:
        name, value = map(bytes, self._header)
        self._headers[name.lower()] = value
        self._header = bytearray(), bytearray()

    def _named(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise _unparsed("a field has no name")
        self._name = _text(options[b"name"], "a field's name")
        self._is_file = self._name == "file"
        if b"filename" in options and not self._is_file:
            message = f"Unexpected file in '{self._name[:64]}': send one file, as 'file'."
            raise InvalidRequest(message, param=self._name[:64])

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        if not self._is_file and len(self._value) > MAX_FIELD_BYTES:
            message = (
                f"Invalid '{self._name[:64]}': more than {MAX_FIELD_BYTES} bytes in a field of a "
                "form."
            )
            raise InvalidRequest(message, param=self._name[:64], code="string_above_max_length")

    def _end(self) -> None:
        form, name = self._form, self._name
        if self._is_file:
            if form.file is not None:
                raise _twice("file")
            form.file = bytes(self._value)
            return
        text = _text(self._value, f"'{name[:64]}'")
        base, bracket, _ = name.partition("[")
        if name.endswith("[]"):
            _list(form.fields, base).append(text)
        elif bracket:  # a member of an object, which no supported field is
            _list(form.fields, base).append(f"{name}={text}")
        elif name in form.fields:
            raise _twice(name)
        else:
            form.fields[name] = text

    def _finished(self) -> None:
        self._complete = True


def _list(fields: Fields, name: str) -> list[str]:
    values = fields.setdefault(name, [])
    if isinstance(values, str):
        raise _twice(name)
    return values


def _text(value: bytes | bytearray, subject: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _unparsed(f"{subject} is not UTF-8") from None


def _twice(name: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{name[:64]}': sent twice.", param=name[:64])


def _unparsed(reason: str) -> InvalidRequest:
    message = f"We could not parse the form in the body of your request: {reason}."
    return InvalidRequest(message, code="invalid_form")


def file_of(form: Form) -> bytes:
    """The file. Raises InvalidRequest without one."""
    if form.file is None:
        message = "Missing required parameter: 'file'."
        raise InvalidRequest(message, param="file", code="missing_required_parameter")
    return form.file
