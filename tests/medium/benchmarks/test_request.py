import json
from typing import Any

from benchmarks import request
from benchmarks.request import Prompt


def body(message: bytes) -> Any:
    head, _, content = message.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    return json.loads(content)


def test_questions_differ_by_number_and_ask_for_usage():
    """A prefix cache matches no whole prompt, and no answer ends early."""

    first, second = (
        body(request.request("question", "m", stream=True, tokens=7, prompt=Prompt(number=number)))
        for number in (1, 2)
    )

    assert first["messages"][-1] != second["messages"][-1]
    assert first["stream_options"] == {"include_usage": True}
    assert (first["max_tokens"], first["ignore_eos"], first["temperature"]) == (7, True, 0)


def test_inputs_of_numbered_embeddings_differ():
    """Within a request and between two."""

    told = [
        body(request.request("embeddings_float", "m", stream=False, tokens=1, prompt=prompt))
        for prompt in (Prompt(inputs=3, number=1), Prompt(inputs=3, number=2))
    ]

    assert len({text for each in told for text in each["input"]}) == 6
