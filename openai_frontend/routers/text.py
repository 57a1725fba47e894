"""The routes of every API for text, which share what runs a conversation."""

from collections.abc import Iterator

from fastapi import APIRouter

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.chat import chat_router
from openai_frontend.routers.completions import completions_router
from openai_frontend.routers.decisions import decisions_router
from openai_frontend.routers.messages import messages_router
from openai_frontend.routers.responses import responses_router
from openai_frontend.routers.streaming import StreamLimits
from openai_frontend.routers.tokenization import render_router
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.chat import ChatCompletions
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.dialects.messages.reader import Messages
from openai_frontend.serving.dialects.responses.decisions import Decisions
from openai_frontend.serving.dialects.responses.reader import Responses
from openai_frontend.serving.guard import Guards
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import FindMember


def text_routers(  # noqa: PLR0913  what the APIs share
    registry: ModelRegistry,
    conversations: Conversations,
    completions: Completions,
    policy: FieldPolicy,
    streams: StreamLimits,
    find_member: FindMember,
    guards: Guards,
) -> Iterator[APIRouter]:
    """One router for each API."""
    chat = ChatCompletions(conversations, policy)
    yield chat_router(registry, chat, streams, find_member, guards)
    yield responses_router(registry, Responses(conversations, policy), streams, find_member)
    yield messages_router(registry, Messages(conversations, policy), streams, find_member)
    yield completions_router(registry, completions, streams, find_member)
    yield decisions_router(registry, Decisions(conversations, policy))
    yield render_router(registry, chat, completions)
