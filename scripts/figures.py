"""Size, shape and coupling of `openai_frontend` as numbers: `make figures`.

Branches are if, loops, except, ternaries, boolean operands and comprehensions. A broad except
catches Exception or BaseException. An import from a package counts as one of the module behind it.
The files of a request are those between the server's protocol class and the engine.
"""

import ast
import asyncio
import io
import re
import statistics
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "openai_frontend"
PACKAGES = (PACKAGE, "schemas", "chat_templates")
SHORT_FILE, LONG_FUNCTION, MANY_BRANCHES = 50, 50, 10
CHAT_ROUTER = f"{PACKAGE}.routers.chat"
# Kind of change -> one example of it: a word in the sources. See docs/extending.md.
PROBES = {
    "request field": "repetition_detection",
    "endpoint": "rerank",
    "model ability": "transcription",
    "tensor contract": "llmapi",
    "parser family": "olmo3",
    "metric": "BUFFERED_BODY_BYTES",
    "setting": "sse_ping_interval_s",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension,
)  # fmt: skip


def main() -> None:
    rows = {
        **size_figures(),
        **{f"files per {kind}": f"{n} ({PROBES[kind]})" for kind, n in change_figures().items()},
        **import_figures(),
        **asyncio.run(request_figures()),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


# Size


def size_figures() -> dict[str, str]:
    """Lines of files and functions, comments and docstrings."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    lengths = [len(path.read_text().splitlines()) for path in files]
    modules = [ast.parse(path.read_text()) for path in files]
    nodes = [node for module in modules for node in ast.walk(module)]
    functions = [node for node in nodes if isinstance(node, Function)]
    function_lengths = [_lines(function) for function in functions]
    public = [function for module in modules for function in _public_functions(module)]
    documented = sum(ast.get_docstring(function) is not None for function in public)
    lines = sum(lengths)
    return {
        "files": f"{len(files):,}",
        "lines": f"{lines:,}",
        "file median/p90/max": _spread(lengths),
        f"files <= {SHORT_FILE} lines": _share(sum(n <= SHORT_FILE for n in lengths), len(files)),
        "function median/p90/max": _spread(function_lengths),
        f"functions > {LONG_FUNCTION} lines": str(sum(n > LONG_FUNCTION for n in function_lengths)),
        f"functions > {MANY_BRANCHES} branches": _share(
            sum(_branches(each) > MANY_BRANCHES for each in functions), len(functions)
        ),
        "broad excepts": str(sum(map(_is_broad, nodes))),
        "lines with a comment": _share(sum(map(_comment_lines, files)), lines),
        "docstring lines": _share(sum(map(_docstring_lines, modules)), lines),
        "public functions documented": _share(documented, len(public)),
    }


def _lines(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0)) - int(getattr(node, "lineno", 0)) + 1


def _public_functions(node: ast.AST) -> Iterator[Function]:
    """Functions and methods without an underscore, of public classes; none within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _public_functions(child)
        elif isinstance(child, Function) and not child.name.startswith("_"):
            yield child


def _branches(function: ast.AST) -> int:
    nodes = [*ast.walk(function)]
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return operands + sum(isinstance(node, _BRANCHES) for node in nodes)


def _is_broad(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        each is None or (isinstance(each, ast.Name) and each.id in ("Exception", "BaseException"))
        for each in caught
    )


def _comment_lines(path: Path) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def _docstring_lines(module: ast.Module) -> int:
    documentable = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(
        _lines(node.body[0])
        for node in ast.walk(module)
        if isinstance(node, documentable) and ast.get_docstring(node) is not None
    )


def _spread(values: list[int]) -> str:
    p90 = statistics.quantiles(values, n=10)[-1]
    return f"{statistics.median(values):.0f}/{p90:.0f}/{max(values)}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)"


# Changes


def change_figures() -> dict[str, int]:
    """Kind of change -> files of the wheel in which its example appears."""
    texts = [path.read_text() for path in _modules().values()]
    return {
        kind: sum(re.search(rf"\b{word}\b", text) is not None for text in texts)
        for kind, word in PROBES.items()
    }


# Imports


def import_figures() -> dict[str, str]:
    """How modules depend on each other, in all packages of the wheel."""
    graph = import_graph()
    importers = Counter(module for imported in graph.values() for module in imported)
    single = sum(count == 1 for count in importers.values())
    names = [module.removeprefix(f"{PACKAGE}.") for module in longest_chain(graph)]
    loaded = [module for module in _closure(graph, CHAT_ROUTER) if module.startswith(PACKAGE)]
    return {
        "import cycles": str(len(cycles(graph))),
        "longest import chain": f"{len(names)}: {' > '.join(names)}",
        "modules with one importer": f"{single} of {len(graph)}",
        "files that routers/chat.py loads": str(len(loaded)),
    }


def import_graph() -> dict[str, set[str]]:
    """Module -> the modules that it imports, at its top or within functions."""
    return {
        module: _modules().keys() & set(_imported_names(module).values()) - {module}
        for module in _modules()
    }


@cache
def _modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def _imported_names(module: str) -> dict[str, str]:
    """Name in the module -> the module that it comes from."""
    names = {}
    for node in ast.walk(ast.parse(_modules()[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = alias.asname or alias.name
                names[name] = _source(node.module, alias.name)
        elif isinstance(node, ast.Import):
            names |= {alias.name: alias.name for alias in node.names}
    return names


def _source(module: str, name: str) -> str:
    """The module that `from module import name` depends on: behind a package's face, or it."""
    if f"{module}.{name}" in _modules():
        return f"{module}.{name}"
    if module in _modules() and _modules()[module].name == "__init__.py":
        return _imported_names(module).get(name, "")
    return module


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other."""
    reached = {module: _closure(graph, module) for module in graph}
    groups = {
        frozenset(each for each in seen if module in reached[each])
        for module, seen in reached.items()
    }
    return [set(group) for group in groups if len(group) > 1]


def _closure(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one longest chain, from the top. The graph has no cycles."""

    @cache
    def below(module: str) -> tuple[str, ...]:
        chains = (below(each) for each in sorted(graph[module]))
        return (module, *max([(), *chains], key=len))

    longest = max(map(below, graph), key=len)
    return list(longest)


# One request


async def request_figures() -> dict[str, str]:
    """What one streamed chat of 20 tokens touches, with a key and without tools."""
    sys.path.insert(0, str(ROOT))
    from tests import mock_models
    from tests.api.models.conftest import live

    requests: list[set[CodeType]] = []

    def record(frame: FrameType, event: str, argument: object) -> None:
        requests[-1].add(frame.f_code)

    with tempfile.TemporaryDirectory() as folder:
        mock_models.write_with_tokenizer(Path(folder), "mock", answer_tokens=20)
        async with live(Path(folder), api_key=["sk-figures"]) as gateway:
            body = {
                "model": "mock",
                "stream": True,
                "messages": [{"role": "user", "content": "hi"}],
            }
            headers = {"authorization": "Bearer sk-figures"}
            for _ in range(4):
                requests.append(set())
                sys.setprofile(record)
                url = "/v1/chat/completions"
                response = await gateway.client.post(url, json=body, headers=headers)
                sys.setprofile(None)
                response.raise_for_status()
    called = set.intersection(*requests)  # neither first use nor what runs once a second
    package = str(ROOT / PACKAGE)
    beside = (f"{package}/server/", f"{package}/engines/")
    files = [code.co_filename for code in called if code.co_filename.startswith(package)]
    files = [file for file in files if not file.startswith(beside)]
    return {
        "files that a streamed chat touches": str(len(set(files))),
        "functions that a streamed chat calls": str(len(files)),
    }


if __name__ == "__main__":
    main()
