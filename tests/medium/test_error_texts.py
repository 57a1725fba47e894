"""No code decides by the text of a foreign error, which may contain a client's words.

A client can choose them: a model, a tokenizer or a grammar compiler may quote its input. Each place
that looks into such a text is listed here with the reason why only the same client can notice.
"""

import ast
import re
from functools import cache

import pytest

from scripts.figures import PACKAGE, ROOT

ALLOWED = {
    "engines/vllm/conversion.py": "names the field in the message of the same request",
    "engines/vllm/grammars/xgrammar_errors.py": "fails the trial of the same grammar",
    "logs/repeats.py": "selects the level of a log line by how often the same text was logged",
    "models/lora/weights_upload.py": "believes it if its own uploads explain an eviction",
    "media/fetch.py": "logs the gateway's own results of a fetch",
    "models/engine_errors.py": "names the field in the message of the same request",
    "models/management.py": "names the parameter to the client that sent it",
    "object_storage/errors.py": "words the cause of a failed copy in the log",
    "serving/error_reply.py": "hides the message from the same client",
    "triton/backends.py": "words the reason why a model is not loaded",
    "triton/error_codes.py": "removes our own mark; selects between two errors with status 503",
}
ALLOWED_NATIVE = {
    "decode_stream.cc": "restarts the decoder of the same stream",
    "stubs.cc": "believes it only if the process is dead, stopped or stood still",
}

_SEARCHES = {"search", "match", "fullmatch", "findall", "finditer"}
_COMPARES = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count"}
_ERROR_CLASS = re.compile(r"(Error|Exception|Exceeded|InvalidRequest|Unavailable)\b")
_ERROR_NAMES = {"error", "refused", "failure", "exception"}
_TEXT_NAMES = {"message", "reason"}
_NATIVE = re.compile(
    r"(?:message|said|what\(\)|error\.value\(\)\)\))\.(?:find|starts_with|ends_with|compare)\(|"
    r"\b(?:message|said) == "
)


class _Decisions(ast.NodeVisitor):
    """Finds the lines of one function that look into the text of an error."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.lines: list[int] = []
        arguments = [*function.args.args, *function.args.kwonlyargs]
        self._texts = {each.arg for each in arguments if each.arg in _TEXT_NAMES and _is_str(each)}
        self._errors = _ERROR_NAMES | {
            each.arg
            for each in arguments
            if each.annotation and _ERROR_CLASS.search(ast.unparse(each.annotation))
        }
        self._errors |= {
            node.name
            for node in ast.walk(function)
            if isinstance(node, ast.ExceptHandler) and node.name
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and self._has_text(node.value):
                names = [each for target in node.targets for each in ast.walk(target)]
                self._texts |= {each.id for each in names if isinstance(each, ast.Name)}

    def _has_text(self, node: ast.AST) -> bool:
        return any(self._is_text(each) for each in ast.walk(node))

    def _is_text(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._texts
            case ast.Attribute(value=ast.Name(id=name), attr="message" | "args" | "msg"):
                return name in self._errors
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
                return name in self._errors
        return False

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(attr=name) if name in _SEARCHES:
                decides = any(map(self._has_text, node.args))
            case ast.Attribute(value=text, attr=name) if name in _COMPARES:
                decides = self._has_text(text)
            case _:
                decides = False
        if decides:
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        compared = [node.left, *node.comparators]
        if any(isinstance(each, ast.In | ast.NotIn) for each in node.ops):
            compared = node.comparators
        elif not any(isinstance(each, ast.Constant) for each in compared):
            compared = []
        if any(map(self._is_text, compared)):
            self.lines.append(node.lineno)
        self.generic_visit(node)


def _is_str(argument: ast.arg) -> bool:
    return argument.annotation is not None and ast.unparse(argument.annotation) == "str"


def decisions(source: str) -> list[int]:
    """The lines that look into the text of an error."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = _Decisions(node)
            found.visit(node)
            lines |= {*found.lines}
    return sorted(lines)


@cache
def python_decisions() -> dict[str, list[int]]:
    """The lines of each module that look into the text of an error."""
    package = ROOT / PACKAGE
    found = {
        path.relative_to(package).as_posix(): decisions(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }
    return {path: lines for path, lines in found.items() if lines}


def test_no_other_module_looks_into_the_text_of_an_error() -> None:
    assert python_decisions().keys() == ALLOWED.keys(), python_decisions()


def test_no_other_native_file_looks_into_the_text_of_an_error() -> None:
    found = {path.name for path in (ROOT / "native").iterdir() if _NATIVE.search(path.read_text())}

    assert found == ALLOWED_NATIVE.keys()


@pytest.mark.parametrize(
    "line",
    [
        "if PATTERN.search(error.message): pass",
        "if re.match('a', str(error)): pass",
        "if 'dead' in str(error): pass",
        "if 'dead' in error.message: pass",
        "if str(error).startswith('dead'): pass",
        "if error.args[0].endswith('dead'): pass",
        "code, text = error.args\n        if text == 'dead': pass",
        "text = str(error).strip()\n        if text.find('dead') >= 0: pass",
    ],
)
def test_each_way_is_found(line: str) -> None:
    source = f"def f():\n    try:\n        g()\n    except E as error:\n        {line}\n"

    assert decisions(source)
