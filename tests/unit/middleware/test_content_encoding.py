import json

import pytest

from openai_frontend.middleware.request_body import ContentEncoding
from tests.unit.middleware.asgi import call, echo


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"GZIP"])
async def test_compressed_body_is_rejected_unread(encoding):
    sent = await call(ContentEncoding(echo), headers=[(b"content-encoding", encoding)], body=[])

    code = json.loads(sent.body)["error"]["code"]
    assert (sent.status, code) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize("headers", [[], [(b"content-encoding", b"identity")]])
async def test_plain_body_passes(headers):
    sent = await call(ContentEncoding(echo), headers=headers, body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")
