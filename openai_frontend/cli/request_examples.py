"""Example requests for the loaded models: lines for a shell and for Python."""

import json
import math
import mimetypes
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

QUESTION = [{"role": "user", "content": "What is Triton?"}]


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
    def curl_option(self) -> str:
        if self.unix_socket is None:
            return ""
        return f"--unix-socket {shlex.quote(str(self.unix_socket))} "

    def client(self, options: str) -> list[str]:
        """Python lines that create an OpenAI client; `options` are further arguments."""
        client = f'client = OpenAI(base_url="{self.url}"{options}'
        if self.unix_socket is None:
            return ["from openai import OpenAI", f"{client})"]
        transport = f"httpx.HTTPTransport(uds={json.dumps(str(self.unix_socket))})"
        imports = ["import httpx", "from openai import OpenAI"]
        return [*imports, f"{client}, http_client=httpx.Client(transport={transport}))"]


class Example(Protocol):
    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        """A line for a shell; with `keys`, it sends OPENAI_API_KEY."""

    def python(self, model: str) -> str:
        """Lines for Python, after those of `ListenAddress.client`."""


_KEY = ' -H "Authorization: Bearer $OPENAI_API_KEY"'  # OpenAI's SDK reads it too


def _post(place: ListenAddress, url: str, body: Mapping[str, Any], *, keys: bool) -> str:
    headers = "-H 'Content-Type: application/json'" + (_KEY if keys else "")
    return f"curl {place.curl_option}{url} {headers} -d {shlex.quote(json.dumps(body))}"


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
        return f"print(client.{method}.create({arguments}).{self.shown})"


@dataclass(frozen=True, slots=True)
class _FileExample:
    """A request with a file."""

    path: str
    file: str

    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        form = f"-F {shlex.quote(f'model={model}')} -F {shlex.quote(f'file=@{self.file}')}"
        return f"curl {place.curl_option}{place.url}/{self.path}{_KEY if keys else ''} {form}"

    def python(self, model: str) -> str:
        method = self.path.replace("/", ".")
        arguments = f'model={json.dumps(model)}, file=open({json.dumps(self.file)}, "rb")'
        return f"print(client.{method}.create({arguments}).text)"


_DATA = "PICTURE"  # placeholder of the file's base64


@dataclass(frozen=True, slots=True)
class _PictureExample:
    """A chat about a picture, whose file the shell and Python encode."""

    file: str

    def _chat(self) -> _JsonExample:
        kind, _ = mimetypes.guess_type(self.file)
        url = f"data:{kind or 'image/png'};base64,{_DATA}"
        content = [
            {"type": "text", "text": "Describe the picture."},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        fields = {"messages": [{"role": "user", "content": content}]}
        return _JsonExample("chat/completions", fields, "choices[0].message.content")

    def curl(self, place: ListenAddress, model: str, *, keys: bool) -> str:
        line = self._chat().curl(place, model, keys=keys)
        before, _, after = line.rpartition(_DATA)
        return f"""{before}'"$(base64 -w0 {shlex.quote(self.file)})"'{after}"""

    def python(self, model: str) -> str:
        before, _, after = self._chat().python(model).rpartition(f'{_DATA}"')
        encode = f'base64.b64encode(open({json.dumps(self.file)}, "rb").read()).decode()'
        return f'import base64\npicture = {encode}\n{before}" + picture{after}'


_EXAMPLES: Mapping[str, Example] = {
    "chat": _JsonExample("chat/completions", {"messages": QUESTION}, "choices[0].message.content"),
    "completions": _JsonExample("completions", {"prompt": "Triton is"}, "choices[0].text"),
    "embeddings": _JsonExample("embeddings", {"input": "Triton"}, "data[0].embedding[:4]"),
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
        return f"curl {place.curl_option}{shlex.quote(url)}{_KEY if keys else ''}"
    return _post(place, shlex.quote(f"{url}/infer"), {"inputs": tensors}, keys=keys)


def _tensor(declared: Mapping[str, Any]) -> dict[str, Any] | None:
    shape = [max(1, int(size)) for size in declared["shape"]]
    value, count = _VALUES.get(declared["datatype"]), math.prod(shape)
    if value is None or count > _MOST_VALUES:
        return None
    kept = {name: declared[name] for name in ("name", "datatype")}
    return {**kept, "shape": shape, "data": [value] * count}
