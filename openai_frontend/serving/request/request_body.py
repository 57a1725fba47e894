"""Parses and validates the raw bytes of a request body."""

import asyncio
import json
import mmap
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar
from weakref import ReferenceType, ref

import orjson
from pydantic import TypeAdapter, ValidationError

from openai_frontend.errors import InvalidRequest, ServerOverloaded
from openai_frontend.json_limits import (
    TooManyParts,
    check_json_size,
    may_have_many_parts,
    size_checks,
)
from openai_frontend.serving.admission.model import Renders
from openai_frontend.serving.request.validation_error import invalid_request
from schemas.sampling import RequestFields

Fields = TypeVar("Fields", bound=RequestFields)
Plan = TypeVar("Plan")

# Begin and end of a JSON object's member in its text; None if there is not exactly one
FindMember = Callable[[bytes, bytes], tuple[int, int] | None]

# Bodies up to this size are parsed without pauses: 0.2 ms for one of token ids.
_AT_ONCE_BYTES = 16 * 1024
# orjson allocates 12 times the body, and its values in addition. Like pydantic's parser, it aborts
# the process if memory is exhausted.
_READING_TAKES = 16
_UNTOUCHED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class BodyReader(Generic[Fields]):
    """Parses bodies into one schema."""

    def __init__(self, schema: type[Fields]) -> None:
        self._adapter = TypeAdapter(schema)

    async def read(self, body: bytes) -> Fields:
        """Like `parse`, but the event loop is free between the steps of a long body."""
        if len(body) <= _AT_ONCE_BYTES:
            body = _utf8(body)
            if not may_have_many_parts(body):  # without the generators of the steps
                return self._validate_json(body)
            return self.parse(body)
        fields: Fields
        for fields in self._steps(body):  # noqa: B007  the last one is the request
            await asyncio.sleep(0)
        return fields

    def parse(self, body: bytes) -> Fields:
        """The request, of a short body or in a thread.

        Raises InvalidRequest, in OpenAI's words, for the first problem.
        """
        fields: Fields
        *_, fields = self._steps(body)
        return fields

    def _steps(self, body: bytes) -> Iterator[Any]:
        """Yields None between calls that cannot be interrupted, and the request at the end.

        Validating orjson's values takes a third of pydantic's own parsing: for 1 MB of escaped text
        1.3 ms instead of 11. Short bodies do not need it. pydantic's parser reads integers above 64
        bits, which orjson rounds.
        """
        body = _utf8(body)
        try:
            has_long_integer = yield from size_checks(body)
        except TooManyParts as error:
            message = f"We could not parse the JSON body of your request: it has {error}."
            raise InvalidRequest(message, code="json_invalid") from None
        if len(body) <= _AT_ONCE_BYTES:
            yield self._validate_json(body)
            return
        _check_memory(body)
        if has_long_integer:
            yield self._validate_json(body)
            return
        try:
            values: Any = orjson.loads(body)
            yield None
            fields = self._adapter.validate_python(values)
        except (orjson.JSONDecodeError, ValidationError):
            yield None
            fields = self._validate_json(body)  # allows more, such as number keys, or raises
        yield fields

    def _validate_json(self, body: bytes) -> Fields:
        _check_is_json(body)
        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        raise invalid_request(problems)


class Plans:
    """The meaning of the same fields for each model: made for the first request, and kept."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        # By the model's name. The reference is weak: an unloaded model's tokenizer takes megabytes
        self._of: dict[str, tuple[ReferenceType[object], Any]] = {}

    def plan(self, model: Renders, make: Callable[[], Plan]) -> Plan:
        """The plan for this model, or a new one after a reload."""
        prompts = model.prompts
        if prompts is None:
            return make()
        known = self._of.get(model.name)
        if known is None or known[0]() is not prompts:
            known = self._of[model.name] = ref(prompts), make()
        plan: Plan = known[1]
        return plan


class FormReader(Generic[Fields]):
    """Validates the fields of a form, whose values are texts, as one schema."""

    def __init__(self, schema: type[Fields]) -> None:
        self._adapter = TypeAdapter(schema)

    def read(self, fields: Mapping[str, str | list[str]]) -> Fields:
        """Raises InvalidRequest, in OpenAI's words, for the first problem."""
        try:
            return self._adapter.validate_python(fields, strict=False)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        raise invalid_request(problems)


@dataclass(slots=True, eq=False)
class KnownFields(Generic[Fields]):
    """All fields of a request but one, the prompt, which differs between requests that are
    otherwise alike: the turns of a conversation, and those of all users of one agent.
    """

    request: Fields  # with another prompt
    plans: Plans = field(default_factory=Plans)

    def with_prompt(self, name: str, prompt: Any) -> Fields:
        """The request with this prompt.

        It shares the values of the other fields. pydantic's `model_copy` takes 3 us longer.
        """
        known = self.request
        request = object.__new__(type(known))
        object.__setattr__(request, "__dict__", {**known.__dict__, name: prompt})
        for attribute in _PYDANTIC_ATTRIBUTES:
            object.__setattr__(request, attribute, getattr(known, attribute))
        return request


_PYDANTIC_ATTRIBUTES = (
    "__pydantic_fields_set__",
    "__pydantic_extra__",
    "__pydantic_private__",
)
_MAX_KNOWN_BYTES = 2 * 1024 * 1024  # of all known bodies; their fields take 10 times as much
_MAX_KNOWN_BODY = 256 * 1024
_OBJECT_BYTES = 1024  # of a known body without fields


class RepeatedBodyReader(BodyReader[Fields]):
    """Validates only the prompt of a body whose other bytes are known from an earlier request."""

    def __init__(self, schema: type[Fields], prompt: str, find_member: FindMember) -> None:
        """`prompt` is the field that differs. `find_member` takes the body and the field's name."""
        super().__init__(schema)
        self._field, self._name = prompt, prompt.encode()
        self._find_member = find_member
        declared = schema.model_fields[prompt]
        annotated: Any = declared.annotation
        if declared.metadata:
            annotated = Annotated[annotated, *declared.metadata]
        self._prompt: TypeAdapter[Any] = TypeAdapter(annotated, config=schema.model_config)
        # By the other bytes, and where the prompt was; the latest is last
        self._known: OrderedDict[tuple[int, bytes], KnownFields[Fields]] = OrderedDict()
        self._known_bytes = 0

    async def read_known(self, body: bytes) -> tuple[Fields, KnownFields[Fields]]:
        """The request, and its other fields, which are the same object for the same bytes."""
        member = None if len(body) > _MAX_KNOWN_BODY else self._find_member(body, self._name)
        if member is None:
            request = await self.read(body)
            return request, KnownFields(request)
        start, end = member
        key = start, body[:start] + body[end:]
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            prompt = await self._read_prompt(body[start:end])
            if prompt is not None:
                return known.with_prompt(self._field, prompt), known
        request = await self.read(body)
        return request, self._remember(key, KnownFields(request))

    async def _read_prompt(self, text: bytes) -> Any:
        """The prompt; None if it is invalid, which the parser of the whole body explains."""
        try:
            _check_is_json(text)
            if len(text) > _AT_ONCE_BYTES:
                if await _paced(size_checks(text)):  # an integer that orjson rounds
                    return self._prompt.validate_json(text)
                values = orjson.loads(text)
                await asyncio.sleep(0)
                return self._prompt.validate_python(values)
            if may_have_many_parts(text):
                check_json_size(text)
            return self._prompt.validate_json(text)
        except (InvalidRequest, TooManyParts, orjson.JSONDecodeError, ValidationError):
            return None

    def _remember(self, key: tuple[int, bytes], known: KnownFields[Fields]) -> KnownFields[Fields]:
        known.request = known.with_prompt(self._field, None)  # which may be long
        if self._known.pop(key, None) is None:
            self._known_bytes += _cost(key)
        self._known[key] = known
        while self._known_bytes > _MAX_KNOWN_BYTES:
            oldest, _ = self._known.popitem(last=False)
            self._known_bytes -= _cost(oldest)
        return known


async def _paced(steps: Generator[None, None, bool]) -> bool:
    """The result of the steps. The event loop is free between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
        await asyncio.sleep(0)


def _cost(key: tuple[int, bytes]) -> int:
    return len(key[1]) + _OBJECT_BYTES


def _utf8(body: bytes) -> bytes:
    """The body without the byte order mark that Windows PowerShell and some editors write.

    Raises InvalidRequest for UTF-16 and UTF-32, which PowerShell writes too.
    """
    if body[:1] == b"{" and body[1:2] != b"\0":
        return body
    encoding = json.detect_encoding(body)
    if encoding == "utf-8-sig":
        return body[len(BOM_UTF8) :]
    if encoding != "utf-8":
        message = (
            "We could not parse the JSON body of your request: it is encoded as "
            f"{encoding[:6].upper()}. Send it as UTF-8."
        )
        raise InvalidRequest(message, code="json_invalid")
    return body


def _check_is_json(body: bytes) -> None:
    """Reject NaN and Infinity, which pydantic's parser accepts. They may also be part of a text."""
    if b"NaN" not in body and b"Infinity" not in body:
        return
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"We could not parse the JSON body of your request: {error}."
        raise InvalidRequest(message, code="json_invalid") from None


def _check_memory(body: bytes) -> None:
    """Raise ServerOverloaded if the process cannot allocate the memory to parse a long body.

    Takes 5 us: the pages are allocated, not touched.
    """
    try:
        mmap.mmap(-1, _READING_TAKES * len(body), flags=_UNTOUCHED).close()
    except OSError:
        raise ServerOverloaded(
            "The server is out of memory for this request. Retry later."
        ) from None
