"""Looks up names, signatures and fields in the sources of a package, without importing it.

Reads an installed package, an unpacked wheel or a wheel file: about a second of CPU for all that
the gateway uses of vLLM, and neither torch nor a GPU is needed.
"""

import ast
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ReadFile = Callable[[str], str | None]  # path in the package's folder -> text; None: no such file

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def folder(root: Path) -> ReadFile:
    """Files of a site-packages folder or an unpacked wheel."""

    def read(path: str) -> str | None:
        file = root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    return read


def wheel(path: Path) -> ReadFile:
    """Files of a wheel."""
    archive = zipfile.ZipFile(path)
    names = frozenset(archive.namelist())

    def read(name: str) -> str | None:
        return archive.read(name).decode() if name in names else None

    return read


class PackageSource:
    """The definitions of one package."""

    def __init__(self, read: ReadFile) -> None:
        self._read = read
        self._names = cache(self._names_of)

    def problem(self, requirement: str) -> str | None:
        """Why a requirement is not met; None if it is.

        A requirement is `module`, `module:Name`, `module:Class.member` or
        `module:name(parameter, ...)`: a function that accepts these parameters by name, or a class
        with these fields. `A | B` is met if one of both is.
        """
        problems = [self._problem(each.strip()) for each in requirement.split("|")]
        return None if None in problems else problems[0]

    def constant(self, module: str, name: str) -> str | None:
        """The text that a module assigns to a name, or None."""
        match (self._names(module) or {}).get(name):
            case ast.Assign(value=ast.Constant(value=str(text))):
                return text
        return None

    def _problem(self, requirement: str) -> str | None:
        target, _, parameters = requirement.removesuffix(")").partition("(")
        module, _, path = target.partition(":")
        if self._names(module) is None:
            return f"{module} does not exist or cannot be parsed"
        if not path:
            return None
        name, _, attribute = path.partition(".")
        found = self._find(module, name)
        if found is None:
            return f"{module} has no {name}"
        origin, node = found
        if attribute:
            member = self._member(origin, node, attribute)
            if member is None:
                return f"{module}: {name} has no {attribute}"
            node = member
        wanted = {each.strip() for each in parameters.split(",") if each.strip()}
        accepted = self._accepted(origin, node) if wanted else None
        missing = set() if accepted is None else wanted - accepted
        return f"{target} does not accept {', '.join(sorted(missing))}" if missing else None

    def _names_of(self, module: str) -> dict[str, ast.AST] | None:
        """Definitions by name. None if the module is missing or this Python cannot parse it."""
        path = module.replace(".", "/")
        text = self._read(f"{path}.py") or self._read(f"{path}/__init__.py")
        try:
            return None if text is None else dict(_defined(ast.parse(text).body))
        except SyntaxError:
            return None

    def _find(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """The definition of a name and its module, through imports."""
        node = (self._names(module) or {}).get(name)
        if node is None:
            return None
        if isinstance(node, ast.ImportFrom):
            origin = self._imported_module(module, node)
            if self._names(origin) is None:
                return origin, node  # of another package
            original = next(each.name for each in node.names if (each.asname or each.name) == name)
            return self._find(origin, original)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            return self._find(module, node.value.id) or (module, node)
        return module, node

    def _imported_module(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = self._read(module.replace(".", "/") + "/__init__.py") is not None
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + is_package]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def _ancestry(self, module: str, node: ast.AST) -> Iterator[tuple[str, ast.ClassDef]]:
        """A class and its bases, as far as the package defines them."""
        if not isinstance(node, ast.ClassDef):
            return
        yield module, node
        for base in node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(named, ast.Name) and (found := self._find(module, named.id)):
                yield from self._ancestry(*found)

    def _member(self, module: str, node: ast.AST, name: str) -> ast.AST | None:
        """A method, field or attribute of a class or one of its bases."""
        for _, each in self._ancestry(module, node):
            if (member := dict(_members(each)).get(name)) is not None:
                return member
        return None

    def _accepted(self, module: str, node: ast.AST) -> set[str] | None:
        """Names of parameters, or of fields if a class has no `__init__`; None: any."""
        if isinstance(node, ast.ClassDef):
            made = self._member(module, node, "__init__")
            if made is None:
                ancestry = self._ancestry(module, node)
                return {name for _, each in ancestry for name, _ in _members(each)}
            node = made
        if not isinstance(node, _FUNCTION) or node.args.kwarg is not None:
            return None
        given = node.args
        return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Names that statements define, also below `if`, `try` and `with`."""
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node
            case ast.ImportFrom() | ast.Import():
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0], node
            case ast.Assign() | ast.AnnAssign():
                yield from (
                    (each.id, node) for each in _targets(node) if isinstance(each, ast.Name)
                )
            case ast.If() | ast.Try() | ast.With():
                yield from _defined(node.body)
                yield from _defined(getattr(node, "orelse", []))
                for handler in getattr(node, "handlers", []):
                    yield from _defined(handler.body)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Attributes that methods assign to `self`, then fields and methods."""
    for method in node.body:
        if isinstance(method, _FUNCTION):
            for inner in ast.walk(method):
                for target in _targets(inner):
                    match target:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name):
                            yield name, inner
    yield from _defined(node.body)


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    """The targets of an assignment."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ast.walk(target)
    elif isinstance(node, ast.AnnAssign):
        yield node.target
