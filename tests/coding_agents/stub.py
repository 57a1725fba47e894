"""A server that records requests and answers them with a call of the shell, then a final text.

Its answers have the least that each API's streams need, and reasoning, to see how it is replayed.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Json = dict[str, Any]
COMMAND, FINAL, THOUGHT = "echo done", "The task is done.", "I run the command."
PATCH = "*** Begin Patch\n*** Add File: added.txt\n+added\n*** End Patch\n"
# A tool that runs a command -> its arguments
SHELLS: dict[str, Json] = {
    "exec_command": {"cmd": COMMAND},
    "shell_command": {"command": COMMAND},
    "bash": {"command": COMMAND, "description": "Runs the command"},
    "run_shell_command": {"command": COMMAND, "is_background": False},
}
USAGE = {"input_tokens": 100, "output_tokens": 10}


class RecordingStub:
    """Answers each request; `requests` are those received, in order."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.app = Starlette(
            routes=[Route("/{path:path}", self._respond, methods=["GET", "POST", "HEAD"])]
        )

    async def _respond(self, request: Request) -> Response:
        raw = await request.body()
        body: Json | None = json.loads(raw) if raw else None
        query = f"?{request.url.query}" if request.url.query else ""
        self.requests.append(
            {
                "method": request.method,
                "path": request.url.path + query,
                "headers": dict(request.headers),
                "body": body,
            }
        )
        stream = STREAMS.get(request.url.path)
        if stream is None or body is None:
            return JSONResponse({"error": {"message": "no such route"}}, 404)
        return Response("".join(stream(body)), media_type="text/event-stream")


def tool_names(body: Json) -> set[str]:
    """The names of a request's tools, in each of the three APIs."""
    return {str(each.get("function", each).get("name")) for each in body.get("tools") or ()}


def next_call(body: Json, results: int) -> tuple[str, Any] | None:
    """First the shell, then a patch if the request has that tool; None: the final text."""
    names = tool_names(body)
    if results == 0:
        return next(((name, SHELLS[name]) for name in SHELLS if name in names), None)
    return ("apply_patch", PATCH) if results == 1 and "apply_patch" in names else None


def responses_stream(body: Json) -> Iterator[str]:
    results = sum(str(each.get("type")).endswith("call_output") for each in body["input"])
    response: Json = {"id": f"resp_{results}", "object": "response", "created_at": 0,
                      "model": body["model"], "status": "in_progress", "output": []}  # fmt: skip
    number = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        data = {"type": f"response.{kind}", "sequence_number": number - 1, **fields}
        return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"

    yield event("created", response=response)
    yield event("in_progress", response=response)
    output = response_items(next_call(body, results), results)
    for index, item in enumerate(output):
        started = {**item, "status": "in_progress"}
        yield event("output_item.added", output_index=index, item=started)
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            part = item["content"][0]
            yield event("content_part.added", **place, part={**part, "text": ""})
            yield event("output_text.delta", **place, delta=part["text"], logprobs=[])
            yield event("output_text.done", **place, text=part["text"], logprobs=[])
            yield event("content_part.done", **place, part=part)
        yield event("output_item.done", output_index=index, item=item)
    usage = {
        **USAGE, "total_tokens": 110,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 5},
    }  # fmt: skip
    done = {**response, "status": "completed", "output": output, "usage": usage}
    yield event("completed", response=done)
    yield "data: [DONE]\n\n"


def response_items(call: tuple[str, Any] | None, results: int) -> list[Json]:
    reasoning: Json = {
        "type": "reasoning", "id": f"rs_{results}", "status": "completed",
        "summary": [{"type": "summary_text", "text": THOUGHT}], "encrypted_content": "sealed",
    }  # fmt: skip
    ids = {"call_id": f"call_{results}", "status": "completed"}
    if call is None:
        text: Json = {"type": "output_text", "text": FINAL, "annotations": [], "logprobs": []}
        message: Json = {"type": "message", "id": f"msg_{results}", "role": "assistant"}
        return [{**message, "status": "completed", "content": [text]}]
    name, arguments = call
    if isinstance(arguments, str):
        custom = {"type": "custom_tool_call", "id": f"ctc_{results}", "name": name, **ids}
        return [{**custom, "input": arguments}]
    function = {"type": "function_call", "id": f"fc_{results}", "name": name, **ids}
    return [reasoning, {**function, "arguments": json.dumps(arguments)}]


def messages_stream(body: Json) -> Iterator[str]:
    blocks = [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    results = sum(block["type"] == "tool_result" for block in blocks)
    call = next_call(body, results)

    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    cached = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    message = {
        "id": f"msg_{results}", "type": "message", "role": "assistant", "model": body["model"],
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**USAGE, **cached},
    }  # fmt: skip
    yield event("message_start", message=message)
    for index, (block, deltas) in enumerate(message_blocks(body, call, results)):
        yield event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = "tool_use" if call else "end_turn"
    end = {"stop_reason": reason, "stop_sequence": None}
    yield event("message_delta", delta=end, usage={**USAGE, **cached})
    yield event("message_stop")


def message_blocks(
    body: Json, call: tuple[str, Any] | None, results: int
) -> Iterator[tuple[Json, list[Json]]]:
    """Each block with its deltas."""
    if body.get("thinking", {}).get("type") in ("enabled", "adaptive"):
        thinking = {"type": "thinking_delta", "thinking": THOUGHT}
        signature = {"type": "signature_delta", "signature": "signed"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [thinking, signature]
    if call is None:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": FINAL}]
    else:
        use = {"type": "tool_use", "id": f"toolu_{results}", "name": call[0], "input": {}}
        yield use, [{"type": "input_json_delta", "partial_json": json.dumps(call[1])}]


def chat_stream(body: Json) -> Iterator[str]:
    results = sum(each["role"] == "tool" for each in body["messages"])
    call = next_call(body, results)

    def chunk(delta: Json, finish_reason: str | None = None, **fields: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        data = {"id": f"chatcmpl-{results}", "object": "chat.completion.chunk", "created": 0,
                "model": body["model"], "choices": [choice], **fields}  # fmt: skip
        return f"data: {json.dumps(data)}\n\n"

    yield chunk({"role": "assistant", "content": "", "reasoning_content": THOUGHT})
    if call is None:
        yield chunk({"content": FINAL})
    else:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        made = {"index": 0, "id": f"call_{results}", "type": "function", "function": function}
        yield chunk({"tool_calls": [made]})
    yield chunk({}, "tool_calls" if call else "stop")
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    yield chunk({}, choices=[], usage=usage)
    yield "data: [DONE]\n\n"


STREAMS: dict[str, Callable[[Json], Iterator[str]]] = {
    "/v1/responses": responses_stream,
    "/v1/messages": messages_stream,
    "/v1/chat/completions": chat_stream,
}


@contextmanager
def recording_stub() -> Iterator[tuple[RecordingStub, str]]:
    """A stub that serves on a free port, and its URL."""
    stub = RecordingStub()
    server = uvicorn.Server(uvicorn.Config(stub.app, log_config=None, lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield stub, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
