"""Every field and block that Anthropic's SDK can send has an answer, those of its beta too."""

from typing import Any, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import (
    ContentBlockParam,
    MessageCountTokensParams,
    MessageCreateParams,
    ToolUnionParam,
)
from anthropic.types.beta import BetaContentBlockParam
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming

from openai_frontend.serving.request.field_policy import NEUTRAL_IN_MESSAGES
from schemas.messages import CountTokensRequest, MessagesRequest, _block_kind, _tool_kind

REFUSED = NEUTRAL_IN_MESSAGES.keys()
HEADERS = {"betas"}  # the SDK sends them as a header


def fields(*params: Any) -> set[str]:
    return {name for each in params for name in each.__annotations__}


SENT = fields(*get_args(MessageCreateParams), MessageCreateParamsNonStreaming) - HEADERS


def test_every_field_of_the_sdk_is_known():
    """A new one is honoured, accepted or refused, but never unknown."""
    assert SENT - MessagesRequest.model_fields.keys() - REFUSED == set()
    counted = fields(MessageCountTokensParams)
    assert counted - CountTokensRequest.model_fields.keys() - REFUSED == set()


def types_of(union: Any) -> set[str]:
    hints = [get_type_hints(each) for each in get_args(union) if hasattr(each, "__annotations__")]
    return {kind for each in hints if "type" in each for kind in literals(each["type"])}


def literals(annotation: Any) -> set[str]:
    if get_origin(annotation) is None:
        return {annotation} if isinstance(annotation, str) else set()
    return set().union(*map(literals, get_args(annotation)))


KNOWN_BLOCKS = {
    "text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use",
    "tool_result", "tool_reference", "server_tool_use",
}  # fmt: skip


BLOCKS = types_of(ContentBlockParam) | types_of(BetaContentBlockParam)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_every_block_of_the_sdk_is_read(kind):
    """By its own type, or as a note."""
    tag = _block_kind({"type": kind})

    assert tag is not None
    assert tag.strip("<>") in KNOWN_BLOCKS


@pytest.mark.parametrize("kind", sorted(types_of(ToolUnionParam)))
def test_every_tool_of_the_sdk_is_offered_or_left_out(kind):
    assert _tool_kind({"type": kind}) in ("<custom>", "<a server tool>")
