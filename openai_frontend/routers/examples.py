"""The example requests of /openapi.json, by path. Data only: the document fills in the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """A body without its model, and the tasks or capabilities by which a model is chosen."""

    summary: str
    fields: Mapping[str, Any]
    tasks: tuple[str, ...] = ("generate",)
    in_path: bool = False  # the path names the model, not the body

    def body(self, model: str) -> dict[str, Any]:
        """The complete request body."""
        return dict(self.fields) if self.in_path else {"model": model, **self.fields}


_QUESTION = [{"role": "user", "content": "What is Triton?"}]
_EMBED = ("embed",)
_RANK = ("score", "embed")
_TEXT = ("generate", "embed", "score")

_CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "rainy": {"type": "boolean"}},
    "required": ["city", "rainy"],
    "additionalProperties": False,
}
_QUERY = "What does Triton serve?"
_PASSAGES = ["Triton Inference Server serves models.", "Bread is baked in an oven."]

_CHAT: Mapping[str, Example] = {
    "question": Example("A question", {"messages": _QUESTION, "max_completion_tokens": 32}),
    "stream": Example(
        "A stream with token counts at its end",
        {
            "messages": _QUESTION,
            "max_completion_tokens": 32,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "instructions": Example(
        "Instructions and an earlier conversation",
        {
            "messages": [
                {"role": "developer", "content": "Answer in one sentence."},
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hello! What can I tell you?"},
                *_QUESTION,
            ],
            "max_completion_tokens": 32,
        },
    ),
    "choices": Example(
        "Two choices, sampled with a seed",
        {
            "messages": _QUESTION,
            "max_completion_tokens": 32,
            "n": 2,
            "temperature": 0.8,
            "top_p": 0.95,
            "seed": 7,
        },
    ),
    "logprobs": Example(
        "Log probabilities of each token and the two most likely ones",
        {"messages": _QUESTION, "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2},
    ),
    "json_schema": Example(
        "JSON that matches a schema",
        {
            "messages": [{"role": "user", "content": "Is it rainy in Bergen?"}],
            "max_completion_tokens": 64,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "weather", "schema": _CITY_SCHEMA, "strict": True},
            },
        },
    ),
    "stop": Example(
        "Stop strings",
        {"messages": _QUESTION, "max_completion_tokens": 32, "stop": ["\n\n", "server"]},
    ),
}

_COMPLETIONS: Mapping[str, Example] = {
    "text": Example("A text to continue", {"prompt": "Triton is", "max_tokens": 16}),
    "stream": Example("A stream", {"prompt": "Triton is", "max_tokens": 16, "stream": True}),
    "prompts": Example(
        "Several prompts with two choices each",
        {"prompt": ["Triton is", "A gateway is"], "max_tokens": 8, "n": 2},
    ),
    "token_ids": Example("A prompt as token ids", {"prompt": [5, 6, 7], "max_tokens": 8}),
    "logprobs": Example(
        "Log probabilities of each token", {"prompt": "Triton is", "max_tokens": 8, "logprobs": 2}
    ),
    "loglikelihood": Example(
        "Log probabilities of a text, as evaluation harnesses request them",
        {"prompt": "Triton is a server", "max_tokens": 0, "echo": True, "logprobs": 1},
    ),
}

_MESSAGES: Mapping[str, Example] = {
    "question": Example("A question", {"messages": _QUESTION, "max_tokens": 32}),
    "stream": Example("A stream", {"messages": _QUESTION, "max_tokens": 32, "stream": True}),
    "instructions": Example(
        "Instructions and an earlier conversation",
        {
            "system": [{"type": "text", "text": "Answer in one sentence."}],
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hello! What can I tell you?"},
                *_QUESTION,
            ],
            "max_tokens": 32,
        },
    ),
    "json_schema": Example(
        "JSON that matches a schema",
        {
            "messages": [{"role": "user", "content": "Is it rainy in Bergen?"}],
            "max_tokens": 64,
            "output_config": {"format": {"type": "json_schema", "schema": _CITY_SCHEMA}},
        },
    ),
}

_EMBEDDINGS: Mapping[str, Example] = {
    "text": Example("One text", {"input": "Triton serves models."}, _EMBED),
    "texts": Example("Several texts", {"input": _PASSAGES}, _EMBED),
    "base64": Example(
        "Little-endian floats as base64, as OpenAI's SDK requests them",
        {"input": "Triton serves models.", "encoding_format": "base64"},
        _EMBED,
    ),
}

_SPARSE: Mapping[str, Example] = {
    "texts": Example("Several texts", {"inputs": _PASSAGES}, ("sparse_embed",)),
}

_RERANK: Mapping[str, Example] = {
    "passages": Example("Two passages", {"query": _QUERY, "documents": _PASSAGES}, _RANK),
    "best": Example(
        "The best document with its text",
        {"query": _QUERY, "documents": _PASSAGES, "top_n": 1, "return_documents": True},
        _RANK,
    ),
}

_SPEECH: Mapping[str, Example] = {
    "wav": Example(
        "A WAV file", {"input": "one two", "voice": "default", "response_format": "wav"}, ("speak",)
    ),
}

_SHORT = {"max_output_tokens": 64}
_RESPONSES: Mapping[str, Example] = {
    "text": Example("A question", {"input": "What is Triton?", **_SHORT}),
    "streaming": Example(
        "A stream of events", {"input": "What is Triton?", "stream": True, **_SHORT}
    ),
}
_INPUT_TOKENS = {"text": Example("A question", {"input": "What is Triton?"})}

_DECISIONS: Mapping[str, Example] = {
    "questions": Example(
        "Three questions about a text",
        {
            "input": "The parcel arrived two weeks late, and nobody answered my mails.",
            "questions": [
                {"type": "predicate", "instructions": "The customer is satisfied."},
                {
                    "type": "choice",
                    "name": "department",
                    "instructions": "Which department is responsible?",
                    "choices": [{"value": "shipping"}, {"value": "billing"}],
                },
                {
                    "type": "score",
                    "instructions": "How urgent is it?",
                    "levels": [{"label": "low"}, {"label": "medium"}, {"label": "high"}],
                },
            ],
        },
    ),
}

_TOKENIZE = {
    "text": Example("A text", {"prompt": "Triton serves models."}, _TEXT),
    "chat": Example("A conversation, rendered by the chat template", {"messages": _QUESTION}),
}
_DETOKENIZE = {"tokens": Example("Token ids", {"tokens": [5, 6, 7]}, _TEXT)}

_CHANGE = {
    "wait": Example("Wait until it is done", {}, in_path=True),
    "stream": Example("Stream the progress", {"stream": True}, in_path=True),
}

_PROMPT = {"text_input": "What is Triton?"}
_SAMPLING = {"temperature": 0, "max_tokens": 16}
_INFER: Mapping[str, Example] = {
    "json": Example(
        "Two inputs and one requested output",
        {
            "id": "42",
            "inputs": [
                {"name": "INPUT0", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, 3, 4]},
                {"name": "INPUT1", "shape": [1], "datatype": "BYTES", "data": ["some text"]},
            ],
            "outputs": [{"name": "OUTPUT0"}],
        },
        in_path=True,
    ),
}
_GENERATE: Mapping[str, Example] = {
    "text": Example(
        "A text", {**_PROMPT, "parameters": {"stream": False, **_SAMPLING}}, in_path=True
    ),
}
_GENERATE_STREAM: Mapping[str, Example] = {
    "text": Example(
        "A text", {**_PROMPT, "parameters": {"stream": True, **_SAMPLING}}, in_path=True
    ),
}
_INDEX = {"ready": Example("Only ready models", {"ready": True}, in_path=True)}
_LOAD = {"plain": Example("From the repository", {}, in_path=True)}
_UNLOAD = {
    "plain": Example(
        "Without dependents", {"parameters": {"unload_dependents": False}}, in_path=True
    )
}

_ADAPTER = {"lora_name": "pirate"}

_POOLING: Mapping[str, Example] = {
    "texts": Example("One vector for each text", {"input": _PASSAGES, "task": "embed"}, _EMBED),
    "tokens": Example(
        "A vector for each token",
        {"input": "Triton serves models.", "task": "token_embed"},
        ("token_embed",),
    ),
}

_CLASSIFY: Mapping[str, Example] = {
    "texts": Example("Several texts", {"input": _PASSAGES}, ("classify",)),
}

_MODERATE: Mapping[str, Example] = {
    "texts": Example("Several texts", {"input": _PASSAGES}, ("moderation",)),
}

_SCORE: dict[str, Example] = {
    "pairs": Example(
        "One text with several others", {"text_1": _QUERY, "text_2": _PASSAGES}, _RANK
    ),
    "queries": Example("Queries and documents", {"queries": _QUERY, "documents": _PASSAGES}, _RANK),
}

EXAMPLES: Mapping[str, Mapping[str, Example]] = {
    "/v2/models/{model}/infer": _INFER,
    "/v2/models/{model}/generate": _GENERATE,
    "/v2/models/{model}/generate_stream": _GENERATE_STREAM,
    "/v2/repository/index": _INDEX,
    "/v2/repository/models/{model}/load": _LOAD,
    "/v2/repository/models/{model}/unload": _UNLOAD,
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _RESPONSES,
    "/v1/responses/input_tokens": _INPUT_TOKENS,
    "/v1/decisions": _DECISIONS,
    "/v1/completions": _COMPLETIONS,
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": {"question": Example("A question", {"messages": _QUESTION})},
    "/v1/embeddings": _EMBEDDINGS,
    "/v1/audio/speech": _SPEECH,
    "/v1/rerank": _RERANK,
    "/v2/rerank": {"passages": _RERANK["passages"]},
    "/rerank": {
        **_RERANK,
        "texts": Example(
            "The format of text-embeddings-inference", {"query": _QUERY, "texts": _PASSAGES}, _RANK
        ),
    },
    "/embed_sparse": _SPARSE,
    "/v1/pooling": _POOLING,
    "/pooling": _POOLING,
    "/v1/classify": _CLASSIFY,
    "/classify": _CLASSIFY,
    "/v1/moderations": _MODERATE,
    "/v1/score": _SCORE,
    "/score": _SCORE,
    "/v1/models/{id}/load": _CHANGE,
    "/v1/models/{id}/unload": _CHANGE,
    "/v1/models/{id}/sleep": {
        **_CHANGE,
        "level": Example("Without the weights", {"level": 2}, in_path=True),
    },
    "/v1/models/{id}/wake": _CHANGE,
    "/v1/load_lora_adapter": {
        "name": Example("An adapter in one of the operator's folders", _ADAPTER)
    },
    "/v1/unload_lora_adapter": {"name": Example("An adapter", _ADAPTER)},
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    "/v1/completions/render": {
        "prompts": Example("Two prompts", {"prompt": ["Triton is", "A model is"]})
    },
    "/v1/chat/completions/render": {
        "question": Example("A question", {"messages": _QUESTION}),
        "json_schema": _CHAT["json_schema"],
    },
}
