"""docs/errors.md lists exactly the error codes that the gateway can return."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openai_frontend import errors
from openai_frontend.serving.error_reply import reply_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if re.match(r"\| \d{3} \|", line)
]
OF_400 = re.search(r"code of a 400(.*?)\n\n", PAGE, re.DOTALL)
assert OF_400 is not None
ROWS += [
    ("400", "invalid_request_error", code, "", "no")
    for codes in re.findall(r"^\| (`[^|]+) \|", OF_400[1], re.MULTILINE)
    for code in re.findall(r"`(\w+)`", codes)
]
BY_CODE = {code: (int(status), type_, again) for status, type_, code, _, again in ROWS}

# `validation_error.py` composes these from the kind of error and its subject
SIDES = ("above_max", "below_min")
NUMBERS = ("integer", "decimal")
LENGTHS = ("array", "object", "string")
COMPOSED = {
    *(f"{kind}_{side}_value" for kind in NUMBERS for side in SIDES),
    *(f"{kind}_{side}_length" for kind in LENGTHS for side in SIDES),
    *(f"empty_{kind}" for kind in LENGTHS),
}
NEVER_SENT = {errors.RequestCancelled.code}


def codes_in(source: ast.AST) -> Iterator[str]:
    """Codes in the source: `code="..."`, `code = "..."`, and those of `http_error`."""
    for node in ast.walk(source):
        match node:
            case ast.keyword(arg="code", value=value):
                yield from words(value)
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                yield from words(value)
            case ast.Call(func=ast.Name(id="http_error"), args=[_, _, value]):
                yield from words(value)


def words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_table_has_every_code_of_the_source() -> None:
    """It has no other codes."""
    wordings = ast.parse((ROOT / "openai_frontend/serving/request/validation_error.py").read_text())
    named = set(COMPOSED) | {"unknown_url", "method_not_supported"}
    for tuple_ in (node for node in ast.walk(wordings) if isinstance(node, ast.Tuple)):
        if len(tuple_.elts) == 2:
            named |= {word for word in words(tuple_.elts[1]) if word in BY_CODE}
    package = ROOT / "openai_frontend"
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] != "engines":
            named |= set(codes_in(ast.parse(path.read_text(encoding="utf-8"))))

    assert named - NEVER_SENT == set(BY_CODE) - {"null"}


def raised() -> Iterator[type[errors.GatewayError]]:
    waiting = [errors.GatewayError]
    while waiting:
        waiting += (found := waiting.pop()).__subclasses__()
        if found.code is not None and found.code not in NEVER_SENT:
            yield found


MADE: dict[type[errors.GatewayError], Callable[[], errors.GatewayError]] = {
    errors.ModelFailed: lambda: errors.ModelFailed("m", "x"),
    errors.EngineRestarting: lambda: errors.EngineRestarting("m", "x", retry_after_s=5),
}


@pytest.mark.parametrize("kind", list(raised()), ids=lambda kind: kind.__name__)
def test_row_matches_the_exception(kind: type[errors.GatewayError]) -> None:
    """Status, type and retry advice are those of the exception's response."""
    failure = reply_for(MADE.get(kind, lambda: kind("x"))())

    status, type_, again = BY_CODE[str(kind.code)]
    assert (failure.status, kind.type) == (status, type_)
    assert again == told_again(failure.status, failure.headers)


def told_again(status: int, headers: dict[str, str]) -> str:
    """Whether and when OpenAI's SDKs retry after the response."""
    if "x-should-retry" in headers:
        return f"no: `x-should-retry: {headers['x-should-retry']}"
    if "retry-after" in headers:
        assert int(headers["retry-after-ms"]) == 1000 * int(headers["retry-after"])
        return f"after `retry-after` ({headers['retry-after']} s)"
    assert status not in (408, 409, 429)
    assert status < 500
    return "no"
