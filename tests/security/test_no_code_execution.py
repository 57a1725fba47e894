"""The gateway's sources run no text as code, unpickle no objects and start no program
(CVE-2025-9141: `eval` in a tool parser; CVE-2026-42271: a test endpoint that ran commands).

ruff's S rules check each line; this test checks every name, so that no `noqa` can hide one. ALLOWED
gives the reason for each exception.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway_process import ROOT

PACKAGES = ("openai_frontend", "schemas", "chat_templates")

# name -> what it does
BANNED = {
    "eval": "runs text",
    "exec": "runs text",
    "compile": "runs text",
    "__import__": "imports by text",
    "literal_eval": "parses text as Python, and recurses",
    "pickle": "unpacks objects",
    "_pickle": "unpacks objects",
    "dill": "unpacks objects",
    "cloudpickle": "unpacks objects",
    "marshal": "unpacks objects",
    "shelve": "unpacks objects",
    "torch.load": "unpacks objects",
    "numpy.load": "unpacks objects where it is asked to",
    "np.load": "unpacks objects where it is asked to",
    "yaml.load": "makes objects",
    "yaml.unsafe_load": "makes objects",
    "subprocess": "starts programs",
    "os.system": "starts programs",
    "os.popen": "starts programs",
    "os.fork": "starts processes",
    "os.execv": "starts programs",
    "os.execve": "starts programs",
    "os.execvp": "starts programs",
    "os.posix_spawn": "starts programs",
    "pty": "starts programs",
    "multiprocessing": "starts processes",
    "subprocess_exec": "starts programs",
    "subprocess_shell": "starts programs",
    "create_subprocess_exec": "starts programs",
    "create_subprocess_shell": "starts programs",
    "import_module": "imports by text",
    "trust_remote_code": "runs a model's own code",
}  # fmt: skip

# file -> name -> why it is allowed
_TRIAL = "grammars are tried in a process of their own, which starts from our own command"
_MEDIA = "images and audio are decoded in processes with limits, which our own command starts"
_NAMED = "a class that the operator's files name, never a request"
ALLOWED = {
    "openai_frontend/config/strict_yaml.py": {"yaml.load": "with the safe loader, compiled"},
    "openai_frontend/models/lora/files.py": {"numpy.load": "says allow_pickle=False"},
    "openai_frontend/models/model_files.py": {"numpy.load": "says allow_pickle=False"},
    "openai_frontend/prompting/tokenizer.py": {"trust_remote_code": "says False"},
    "openai_frontend/engines/vllm/grammars/sandbox_worker.py": {"os.fork": _TRIAL},
    "openai_frontend/runtime/helper_process.py": {
        "subprocess": "starts this interpreter, for media and grammars",
        "pickle": "reads the arguments that its parent writes",
        "import_module": "a function that our own code names",
    },
    "openai_frontend/media/fork_server.py": {
        "os.fork": _MEDIA,
        "import_module": "the pool's module, which our own command names",
    },
    "openai_frontend/engines/vllm/media/images.py": {
        "pickle": "writes vLLM's own config for the process that it starts",
    },
    "openai_frontend/engines/vllm/media/worker.py": {
        "pickle": "reads that config, from its parent's pipe, before any image or audio",
    },
    "openai_frontend/engines/vllm/arguments.py": {
        "multiprocessing": "its tracker of shared memory is started before vLLM's threads are",
    },
    "openai_frontend/engines/vllm/processes/children.py": {
        "multiprocessing": "starts vLLM's engines, as vLLM would, and helpers for their models",
    },
    "openai_frontend/engines/handle.py": {
        "multiprocessing": "reaps the process of an engine that had to be killed",
    },
    "openai_frontend/engines/loader.py": {
        "multiprocessing": "looks at the processes of an engine whose load is given up",
        "import_module": _NAMED,
    },
    "openai_frontend/models/parser_selection.py": {"import_module": _NAMED},
    "openai_frontend/runtime/compatibility.py": {"import_module": "names that are written there"},
    "openai_frontend/triton/inprocess.py": {"import_module": "a name that is written there"},
    "openai_frontend/cli/init_repo/vllm.py": {"import_module": "a name that is written there"},
    "openai_frontend/cli/flags/engine.py": {"import_module": "a name that is written there"},
    "openai_frontend/cli/install_core.py": {
        "subprocess": "runs pip with fixed arguments, for the operator's own command",
    },
    "openai_frontend/engines/vllm/flags.py": {"import_module": "names that are written there"},
    "openai_frontend/cli/command.py": {"import_module": "a name that is written there"},
    "openai_frontend/cli/cached_repository.py": {"import_module": "a name that is written there"},
    "openai_frontend/cli/check/load_checks.py": {"import_module": "names that are written there"},
    "openai_frontend/logs/engine_logs.py": {
        "multiprocessing": "asks for the name of the process that it runs in",
    },
    "openai_frontend/engines/vllm/processes/failures.py": {
        "multiprocessing": "opens a pipe to each process that vLLM starts",
    },
    "openai_frontend/server/process.py": {"multiprocessing": "ends the engines' processes"},
}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that is called, imported or accessed, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno
            yield (node.module or "").partition(".")[0], node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node), node.lineno
            yield from ((node.attr, node.lineno) for _ in [0] if node.attr not in ("compile",))
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def found(path: Path) -> dict[str, int]:
    """Return a map of banned name to line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name: line for name, line in names(tree) if name in BANNED}


def test_sources_use_no_banned_name():
    """ALLOWED lists the exceptions."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name} ({BANNED[name]})"
        for path in sources()
        for name, line in found(path).items()
        if name not in ALLOWED.get(str(path.relative_to(ROOT)), {})
    ]

    assert wrong == []


def test_every_allowed_name_is_still_used():
    """An outdated exception must be removed."""
    gone = [
        f"{path}: {name}"
        for path, reasons in ALLOWED.items()
        for name in reasons
        if name not in found(ROOT / path)
    ]

    assert gone == []


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "from pickle import loads",
        "import subprocess as s",
        "import os\nos.system('id')",
        "from os import system\nimport os\nos.execve(a, b, c)",
        "from ast import literal_eval as parse",
        "ast.literal_eval(x)",
        "torch.load(path)",
        "asyncio.create_subprocess_exec('id')",
        "from yaml import load\nimport yaml\nyaml.load(x)",
        "AutoTokenizer.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_every_spelling_of_a_banned_name_is_found(source):
    assert {name for name, _ in names(ast.parse(source))} & BANNED.keys()


def test_native_sources_start_no_program():
    """The extension also calls no unsafe string functions."""
    banned = ("system(", "popen(", "execv", "execl", "fork(", "posix_spawn", "strcpy(", "sprintf(",
              "alloca(", "gets(")  # fmt: skip
    wrong = [
        (path.name, word)
        for path in sorted((ROOT / "native").rglob("*"))
        if path.suffix in (".cc", ".h", ".cpp")
        for word in banned
        if word in path.read_text(encoding="utf-8").replace("snprintf(", "")
    ]

    assert wrong == []
    assert (ROOT / "native").is_dir()
