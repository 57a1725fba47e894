"""Sealed reasoning: which servers and callers read it, and what damaged texts do."""

import base64
from typing import Any

import pytest

from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.messages.reader import Messages
from openai_frontend.serving.dialects.responses.reader import Responses
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.sealed_text import UNENCRYPTED, TextSeals, Unsealer
from schemas.messages import MessagesRequest
from schemas.responses import ResponsesRequest
from tests.fast.auth.key_files import FakeClock, caller, key
from tests.fast.serving.fake_model import FakeModel, admission

SECRET, TEXT = "a secret of a deployment", "I think é\ud800 " * 50
ANNA, BERT = "a" * 64, "b" * 64
READERS = {
    "the same server": (SECRET, ANNA, TEXT),
    "a key of another tenant": (SECRET, BERT, None),
    "no key": (SECRET, "", None),
    "another secret": (f"{SECRET}!", ANNA, None),
    "no secret": (None, ANNA, None),
}


@pytest.mark.parametrize(("secret", "tenant", "expected"), READERS.values(), ids=READERS)
def test_sealed_text_is_read_with_its_secret_and_tenant(secret, tenant, expected):
    """The reader shares nothing with the server that sealed, but the secret."""
    sealed = TextSeals(SECRET).of(ANNA)(TEXT)

    assert Unsealer(TextSeals(secret).of(tenant)).read(sealed) == expected


def test_sealed_text_does_not_show_the_text():
    """It is another one each time, and its bytes are not compressed text."""
    seal = TextSeals(SECRET).of(ANNA)
    sealed = seal("hm")

    assert sealed != seal("hm")
    assert Unsealer().read(f"ofr1.{sealed[5:]}") is None


def test_text_from_before_the_secret_is_read():
    """A client may send any reasoning, so nothing is lost by it."""
    assert Unsealer(TextSeals(SECRET).of(ANNA)).read(UNENCRYPTED("hm")) == "hm"


def test_damaged_text_is_never_read():
    """No byte can be changed or cut off, and none of it fails a request."""
    seal = TextSeals(SECRET).of(ANNA)
    content = base64.b64decode(seal("I think.")[5:])
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
               for at in range(len(content))]  # fmt: skip
    cut = [content[:size] for size in range(len(content))]

    damaged = [f"ofr2.{base64.b64encode(each).decode()}" for each in (*flipped, *cut)]
    reader = Unsealer(seal)

    assert [reader.read(each) for each in (*damaged, "ofr2.%", "ofr3.AAAA")] == [None] * (
        len(damaged) + 2
    )


def prompt_of(model):
    messages, _ = model.rendered[-1]
    return [each.get("reasoning") for each in messages if each["role"] == "assistant"]


@pytest.mark.parametrize(("reader", "expected"), [("anna", "hm"), ("bert", None)])
async def test_reasoning_returns_to_the_prompt_of_its_key(reader, expected):
    """In both dialects. Another key's is left out, and the request is answered."""
    seals = TextSeals(SECRET)
    conversations = Conversations(InferenceLimits(), admission(), seals=seals)
    who = caller(key(reader), FakeClock())
    sealed = seals.of(caller(key("anna"), FakeClock()).key.digest)("hm")
    question = {"role": "user", "content": "Why?"}
    thinking = {"type": "thinking", "thinking": "", "signature": sealed}
    said = [thinking, {"type": "text", "text": "Yes."}]
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    answer = {"role": "assistant", "content": "Yes."}
    model: Any = FakeModel()
    policy = FieldPolicy("reject")

    current.set(RequestContext("r", principal=who))
    turns = [question, {"role": "assistant", "content": said}, question]
    await Messages(conversations, policy).prepare(
        MessagesRequest.model_validate({"messages": turns, "max_tokens": 9}), model
    )
    in_messages = prompt_of(model)
    await Responses(conversations, policy).prepare(
        ResponsesRequest.model_validate({"input": [question, item, answer, question]}), model
    )

    assert (in_messages, prompt_of(model)) == ([expected], [expected])
