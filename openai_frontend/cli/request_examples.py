"""Example requests for the loaded models: lines for a shell and for Python."""

import json
import math
import mimetypes
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

QUESTION = [{"role": "user", "content": "What is Triton?"}]

COLUMNS = 100  # of a terminal: only a longer name or path makes a longer line
_INDENT = "  "

# Both JSON and a call in Python may be broken between these. An object without objects is one.
_STRING = r'"(?:[^"\\]|\\.)*"'
_UNBROKEN = re.compile(rf'(?:{{(?:{_STRING}|[^{{}}"])*}}|{_STRING}|\S)+')


def _lines(words: Iterable[str], room: int) -> list[str]:
    """The words in as few lines as possible, of at most `room` characters."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _command(words: Sequence[str], body: Sequence[str] = ()) -> str:
    """A command for a shell. `body`: pieces of the JSON to post, as they are between quotes."""
    lines = _lines(words, COLUMNS - len(_INDENT) - len(" \\"))
    if body:
        quoted = ["-d", f"'{body[0]}", *body[1:]]
        quoted[-1] += "'"
        lines.append(f"\n{_INDENT}".join(_lines(quoted, COLUMNS - len(_INDENT))))
    return f" \\\n{_INDENT}".join(lines)


def _call(python: str) -> str:
    """A line of Python with brackets, broken within them."""
    return f"\n{_INDENT}".join(_lines(_UNBROKEN.findall(python), COLUMNS - len(_INDENT)))


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """How clients on this machine reach the server."""

    url: str  # the base URL
    unix_socket: Path | None = None  # None: TCP

    def __str__(self) -> str:
        return self.url if self.unix_socket is None else str(self.unix_socket)

    @property
    def tensor_url(self) -> str:
        """KServe's base URL."""
        return f"{self.url.removesuffix('/v1')}/v2"

    @property
    def curl_options(self) -> list[str]:
        if self.unix_socket is None:
            return []
        return [f"--unix-socket {shlex.quote(str(self.unix_socket))}"]

    def client(self, options: str) -> list[str]:
        """Python lines that create an OpenAI client; `options` are further arguments."""
        client = f'client = OpenAI(base_url="{self.url}"{options}'
        if self.unix_socket is None:
            return ["from openai import OpenAI", f"{client})"]
        transport = f"transport = httpx.HTTPTransport(uds={json.dumps(str(self.unix_socket))})"
        imports = ["import httpx", "from openai import OpenAI"]
        call = _call(f"{client}, http_client=httpx.Client(transport=transport))")
        return [*imports, transport, call]


class Example(Protocol):
    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        """A command for a shell; with `keys`, it sends OPENAI_API_KEY."""

    def python(self, model: str) -> str:
        """Lines for Python, after those of `ListenAddress.client`."""


_KEY = '-H "Authorization: Bearer $OPENAI_API_KEY"'  # OpenAI's SDK reads it too


def _curl(place: ListenAddress, url: str, *, keys: bool) -> list[str]:
    return ["curl", *place.curl_options, url, *([_KEY] if keys else [])]


def _post(
    place: ListenAddress,
    url: str,
    body: Mapping[str, Any],
    *,
    keys: bool,
    inserted: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """`inserted`: placeholder in the body -> what the shell inserts for it."""
    pieces = [piece.replace("'", "'\"'\"'") for piece in _UNBROKEN.findall(json.dumps(body))]
    for placeholder, expression in inserted.items():
        pieces = [piece.replace(placeholder, f"'{expression}'") for piece in pieces]
    words = [*_curl(place, url, keys=keys), "-H 'Content-Type: application/json'"]
    return _command(words, pieces)


@dataclass(frozen=True, slots=True)
class _JsonExample:
    """Path, body without the model, and the part of the response to print."""

    path: str
    fields: Mapping[str, Any]
    shown: str

    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        return _post(place, f"{place.url}/{self.path}", {"model": model, **self.fields}, keys=keys)

    def python(self, model: str) -> str:
        method = self.path.replace("/", ".")
        fields = {"model": model, **self.fields}
        arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
        return _call(f"print(client.{method}.create({arguments}).{self.shown})")


@dataclass(frozen=True, slots=True)
class _FileExample:
    """A request with a file."""

    path: str
    file: str

    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        form = [f"-F {shlex.quote(f'{each}')}" for each in (f"model={model}", f"file=@{self.file}")]
        return _command([*_curl(place, f"{place.url}/{self.path}", keys=keys), *form])

    def python(self, model: str) -> str:
        method = self.path.replace("/", ".")
        arguments = f'model={json.dumps(model)}, file=open({json.dumps(self.file)}, "rb")'
        return _call(f"print(client.{method}.create({arguments}).text)")


_DATA = "PICTURE"  # placeholder of the file's base64


@dataclass(frozen=True, slots=True)
class _PictureExample:
    """A chat about a picture, whose file the shell and Python encode."""

    file: str

    def _fields(self) -> Mapping[str, Any]:
        kind, _ = mimetypes.guess_type(self.file)
        url = f"data:{kind or 'image/png'};base64,{_DATA}"
        content = [
            {"type": "text", "text": "Describe the picture."},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        return {"messages": [{"role": "user", "content": content}]}

    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        url = f"{place.url}/chat/completions"
        inserted = {_DATA: f'"$(base64 -w0 {shlex.quote(self.file)})"'}
        body = {"model": model, **self._fields()}
        return _post(place, url, body, keys=keys, inserted=inserted)

    def python(self, model: str) -> str:
        chat = _JsonExample("chat/completions", self._fields(), "choices[0].message.content")
        before, _, after = chat.python(model).rpartition(f'{_DATA}"')
        encode = f'base64.b64encode(open({json.dumps(self.file)}, "rb").read()).decode()'
        return f'import base64\npicture = {encode}\n{before}" + picture{after}'


_EXAMPLES: Mapping[str, Example] = {
    "chat": _JsonExample("chat/completions", {"messages": QUESTION}, "choices[0].message.content"),
    "completions": _JsonExample("completions", {"prompt": "Triton is"}, "choices[0].text"),
    "embeddings": _JsonExample("embeddings", {"input": "Triton"}, "data[0].embedding[:4]"),
    "moderation": _JsonExample("moderations", {"input": "You idiot"}, "results[0].flagged"),
}


def examples(
    models: Mapping[str, Collection[str]], repositories: Sequence[Path]
) -> Iterator[tuple[Example, str]]:
    """Each example that a model can answer, with the first such model. `models`: name ->
    capabilities as in `/v1/models`.
    """
    for kind, example in _EXAMPLES.items():
        if (model := _first(models, kind)) is not None:
            yield example, model
    if (model := _first(models, "images")) is not None:
        yield _PictureExample(_file(model, repositories, "picture.png")), model
    if (model := _first(models, "transcription")) is not None:
        file = _file(model, repositories, "recording.wav")
        yield _FileExample("audio/transcriptions", file), model


def _first(models: Mapping[str, Collection[str]], kind: str) -> str | None:
    return next((name for name, abilities in models.items() if kind in abilities), None)


def _file(model: str, repositories: Sequence[Path], otherwise: str) -> str:
    """The path of the model's example, or a name that the caller replaces."""
    files = (file for path in repositories for file in (path / model).glob("example.*"))
    return str(next(files, otherwise))


_MOST_VALUES = 16  # of an example's tensor
# Datatypes with values in JSON
_VALUES: Mapping[str, Any] = {
    "BOOL": True,
    "BYTES": "Triton",
    **dict.fromkeys(("FP32", "FP64"), 1.0),
    **{f"{sign}INT{bits}": 1 for sign in ("", "U") for bits in (8, 16, 32, 64)},
}


def tensor_curl(
    place: ListenAddress, model: str, metadata: Mapping[str, Any], *, keys: bool
) -> str:
    """A line that infers with the model, or one that shows its metadata if its tensors are large,
    have no values in JSON or its answers are several. `metadata`: KServe's.
    """
    url = f"{place.tensor_url}/models/{model}"
    tensors = [_tensor(each) for each in metadata.get("inputs", ())]
    if not tensors or None in tensors or metadata.get("decoupled"):
        return _command(_curl(place, shlex.quote(url), keys=keys))
    return _post(place, shlex.quote(f"{url}/infer"), {"inputs": tensors}, keys=keys)


def _tensor(declared: Mapping[str, Any]) -> dict[str, Any] | None:
    shape = [max(1, int(size)) for size in declared["shape"]]
    value, count = _VALUES.get(declared["datatype"]), math.prod(shape)
    if value is None or count > _MOST_VALUES:
        return None
    kept = {name: declared[name] for name in ("name", "datatype")}
    return {**kept, "shape": shape, "data": [value] * count}
