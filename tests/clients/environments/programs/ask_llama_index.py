"""Sends requests through llama-index and prints the parsed results as JSON."""

import json
import sys

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

PROMPT = "Triton is"
QUESTION = [ChatMessage(role="user", content="What is Triton?")]


def main(url: str, image: str) -> None:
    options = {"model": "demo", "api_base": url, "api_key": "none", "temperature": 0}
    options |= {"context_window": 2048, "max_retries": 0, "max_tokens": 40, "timeout": 600}
    chat = OpenAILike(is_chat_model=True, **options)
    complete = OpenAILike(is_chat_model=False, **options)
    vectors = OpenAILikeEmbedding(model_name="minilm", api_base=url, api_key="none", max_retries=0)
    sees = OpenAILike(is_chat_model=True, **{**options, "model": "demo-vision"})
    picture = [ImageBlock(url=image), TextBlock(text="What colour is the circle?")]
    found = {
        "chat": chat.chat(QUESTION).message.content,
        "chat_stream": "".join(part.delta or "" for part in chat.stream_chat(QUESTION)),
        "image": sees.chat([ChatMessage(role="user", blocks=picture)]).message.content,
        "complete": complete.complete(PROMPT).text,
        "complete_stream": "".join(part.delta or "" for part in complete.stream_complete(PROMPT)),
        "query": vectors.get_query_embedding("A cat\nsleeps."),
        "batch": vectors.get_text_embedding_batch(["A cat sleeps.", "Rates rose."] * 8),
    }
    json.dump(found, sys.stdout)


main(*sys.argv[1:])
