"""Compressed bodies of requests and responses, on a real socket."""

import gzip
import json
import random
import zlib
from collections.abc import Callable

import pytest

from openai_frontend.kserve.compression import accepted_encoding
from tests.api.kserve.conftest import other_app

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATH = "/v2/models/one/infer"
Code = Callable[[bytes], bytes]
COMPRESS: dict[str, Code] = {"gzip": gzip.compress, "deflate": zlib.compress}
DECOMPRESS: dict[str, Code] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def request(count: int, *, binary: bool = False) -> bytes:
    """The echo of that many numbers."""
    output = {"name": "IN_echo", "parameters": {"binary_data": binary}}
    sent = {"name": "IN", "shape": [count], "datatype": "FP32", "data": [1.5] * count}
    return json.dumps({"inputs": [sent], "outputs": [output]}).encode()


async def infer(kserve, body: bytes, accept: str = "identity", **headers):
    """The response with its body as it was sent."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    url = kserve.client.build_request(
        "POST", PATH, content=body, headers={"accept-encoding": accept, **headers}
    )
    response = await kserve.client.send(url, stream=True)
    raw = b"".join([piece async for piece in response.aiter_raw()])
    return response, raw


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_compressed_request(kserve, encoding):
    """The answer is that to the uncompressed request."""
    body = request(3)
    _, expected = await infer(kserve, body)

    response, raw = await infer(kserve, COMPRESS[encoding](body), content_encoding=encoding)

    assert (response.status_code, raw) == (200, expected)


async def test_compressed_request_with_binary_data(kserve):
    """The length of the JSON is that of the decompressed body."""
    head = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32",
                        "parameters": {"binary_data_size": 8}}]}  # fmt: skip
    text = json.dumps(head).encode()
    data = b"\0\0\x80?\0\0\0@"

    response, raw = await infer(
        kserve,
        gzip.compress(text + data),
        content_encoding="gzip",
        inference_header_content_length=str(len(text)),
    )

    assert response.status_code == 200, raw
    assert json.loads(raw)["outputs"][0]["data"] == [1.0, 2.0]


async def test_failures(kserve):
    """A bomb is a 413 and broken data a 400, in KServe's form; the server still answers."""
    async with other_app(kserve, max_body_bytes=1_000_000) as small:
        bomb, _ = await infer(small, gzip.compress(bytes(200_000_000)), content_encoding="gzip")
        broken, _ = await infer(small, b"{}", content_encoding="gzip")
        other, _ = await infer(small, b"{}", content_encoding="br")
        plain, _ = await infer(small, request(1))
        chat = await small.client.post(
            "/v1/chat/completions",
            content=gzip.compress(b"{}"),
            headers={"content-encoding": "gzip", "content-type": "application/json"},
        )

    statuses = [each.status_code for each in (bomb, broken, other, plain, chat)]
    assert statuses == [413, 400, 415, 200, 415]


@pytest.mark.parametrize("encoding", DECOMPRESS)
@pytest.mark.parametrize("count", [2000, 50_000])
@pytest.mark.parametrize("binary", [False, True])
async def test_compressed_response(kserve, encoding, count, binary):
    """It is smaller and the same, with the length of the JSON before the binary data."""
    body = request(count, binary=binary)
    expected, plain = await infer(kserve, body)

    response, raw = await infer(kserve, body, accept=encoding)

    assert response.headers["content-encoding"] == encoding
    assert len(raw) < 0.8 * len(plain)
    assert DECOMPRESS[encoding](raw) == plain
    for name in ("content-type", "inference-header-content-length"):
        assert response.headers.get(name) == expected.headers.get(name)


async def test_response_that_is_not_worth_it(kserve):
    """Short responses, incompressible tensors, errors and streams are sent as they are."""
    numbers = random.Random(1)
    noise = json.loads(request(20_000, binary=True))
    noise["inputs"][0]["data"] = [numbers.random() for _ in range(20_000)]
    accepting = {"accept-encoding": "gzip"}
    short, _ = await infer(kserve, request(3), accept="gzip")
    error, _ = await infer(kserve, b"{}", accept="gzip")
    stream = await kserve.client.post(
        "/v2/models/mock/generate_stream", json={"text_input": "hi"}, headers=accepting
    )
    tensor, raw = await infer(kserve, json.dumps(noise).encode(), accept="gzip")

    for response in (short, error, stream, tensor):
        assert "content-encoding" not in response.headers
    assert len(raw) > 80_000


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=0.0, deflate", "deflate"),
        ("gzip ; q=0.5, deflate;q=0.8", "deflate"),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip;q=0.5", "gzip"),
        ("br", None),
        ("*", None),
        ("gzip;q=2", None),
        ("x" * 1000 + ",gzip", None),
    ],
)
async def test_preferred_encoding(header, encoding):
    """The one with the highest weight; none if the client prefers the identity."""
    assert accepted_encoding(header) == encoding
