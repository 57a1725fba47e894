"""Engines that run inside the gateway under test: one reports its requests and the events of the
process, one fails as libraries fail.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai_frontend.engines.engine import (
    DeltaSink,
    Engine,
    EngineError,
    ModelFacts,
    ModelSpec,
)
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.triton import error_codes

# The audit events that Python raises before it starts a program or opens a connection. `open`
# and `import` are too frequent to record them all; `_record` filters `open` by its argument.
_TOLD = frozenset({
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.forkpty", "pty.spawn", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.bind", "urllib.Request", "ctypes.dlopen", "pickle.find_class", "exec",
    "webbrowser.open", "os.putenv", "shutil.copyfile", "os.remove", "os.rename", "os.mkdir",
})  # fmt: skip
EVENTS = "events.jsonl"


def config(name: str) -> str:
    """A config.pbtxt for an engine of this module."""
    value = f"{__name__}:{name}"
    return (
        'backend: "inprocess"\n'
        f'parameters {{ key: "engine" value: {{ string_value: "{value}" }} }}\n'
    )


class Mirror(Engine):
    """Answers with the request it received, as JSON. After it loads, `events` gets one line for
    each program that the process starts and each file that it opens.
    """

    def load(self, model: ModelSpec) -> ModelFacts:
        """Requires the argument `events`, the path of a file."""
        _record(Path(model.arguments["events"]))
        tokenizer = str(model.version_folder / "tokenizer")
        return ModelFacts(max_model_len=4096, tokenizer=tokenizer, vocab_size=303)

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Sends the whole answer in one delta."""
        told = {
            "prompt": request.prompt,
            "token_ids": list(request.prompt_token_ids or ()),
            "cache_salt": request.cache_salt,
            "priority": request.priority,
        }
        counts = TokenCounts(prompt_tokens=len(request.prompt_token_ids or ()))
        sink.send(
            CompletionDelta(
                text=json.dumps(told), token_ids=(1,), finish_reason="stop", counts=counts
            )
        )


def _record(events: Path) -> None:
    output = events.open("a", buffering=1)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _TOLD or (event == "open" and _is_file(args[0])):
            output.write(json.dumps([event, [repr(arg)[:300] for arg in args]]) + "\n")

    sys.addaudithook(hook)


def _is_file(opened: Any) -> bool:
    return isinstance(opened, str | bytes)


SECRET_TEXT = (
    "CUDA error at /opt/secret/engine.cpp:42, object at 0x7f3a5c001230, "
    'Traceback: File "/srv/hub/model.py", line 7: canary-7be1'
)


class Broken(Engine):
    """Fails each request with the entry of FAILURES that `cache_salt` names. With the suffix `
    late`, fails after the first token.
    """

    def load(self, model: ModelSpec) -> ModelFacts:
        tokenizer = str(model.version_folder / "tokenizer")
        return ModelFacts(max_model_len=4096, tokenizer=tokenizer, vocab_size=303)

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        requested = (request.cache_salt or "runtime").rpartition("/")[2]  # behind its owner
        kind, _, late = requested.partition(" ")
        failure = FAILURES[kind]()
        if not late:
            raise failure
        sink.send(CompletionDelta(text="so far ", token_ids=(1,)))
        sink.fail(failure)


# Each request gets a new exception: a raised one keeps references to everything in its frames.
FAILURES: dict[str, Callable[[], Exception]] = {
    "runtime": lambda: RuntimeError(SECRET_TEXT),
    "value": lambda: ValueError(SECRET_TEXT),
    "os-error": lambda: OSError(2, "No such file", "/opt/secret/weights.bin"),
    "internal": lambda: EngineError(SECRET_TEXT),
    "invalid": lambda: EngineError(SECRET_TEXT, error_codes.INVALID_ARG),
    "unavailable": lambda: EngineError(SECRET_TEXT, error_codes.UNAVAILABLE),
    "unsupported": lambda: EngineError(SECRET_TEXT, error_codes.UNSUPPORTED),
    "not-found": lambda: EngineError(SECRET_TEXT, error_codes.NOT_FOUND),
}
