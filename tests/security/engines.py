"""Engines that run inside the gateway under test: one tells what reached it and what the process
did, one fails as libraries fail.
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

# What Python tells an audit hook before it starts a program or reaches out. `open` and `import`
# come too often to be written down, and are asked about by what they name.
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
    """Answers with what it was asked, as JSON. From its load on, `events` gets a line for each
    program that the process starts and each file that it writes or opens.
    """

    def load(self, model: ModelSpec) -> ModelFacts:
        """`arguments`: `events`, a file."""
        _record(Path(model.arguments["events"]))
        tokenizer = str(model.version_folder / "tokenizer")
        return ModelFacts(max_model_len=4096, tokenizer=tokenizer, vocab_size=303)

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """One delta tells all."""
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
    """Each request fails, as its `cache_salt` says: by a name of FAILURES, and with `late` after
    the first token.
    """

    def load(self, model: ModelSpec) -> ModelFacts:
        """Loads well."""
        tokenizer = str(model.version_folder / "tokenizer")
        return ModelFacts(max_model_len=4096, tokenizer=tokenizer, vocab_size=303)

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Fails."""
        kind, _, late = (request.cache_salt or "runtime").partition(" ")
        failure = FAILURES[kind]()
        if not late:
            raise failure
        sink.send(CompletionDelta(text="so far ", token_ids=(1,)))
        sink.fail(failure)


# Made anew each time: an exception that was raised holds all that its frames held.
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
