"""The Python code of a chat template, without calls for most of its expressions.

Jinja compiles `message.role` to a call of the sandbox, and each `+` to another. Here a member of a
dictionary is read in place, and a chain of `+` is one call. Other values take the sandbox's way.
"""

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst

DICT_NAMES = frozenset(dir(dict))
# Facts of a loop about its item; the sandbox takes 18 calls to allow one of them
LOOP_NAMES = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})
_LOOP = nodes.Name("loop", "load")
_MAX_OPERANDS = 8  # of one sum, whose result counts once it exists


class TemplateCode(CodeGenerator):
    """Jinja's compiler, for the sandbox in template_environment.py."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        name = _variable(node.node, frame)
        if node.node == _LOOP and node.attr in LOOP_NAMES:
            self.write(f"({name}.{node.attr} if type({name}) is LoopContext else ")
            super().visit_Getattr(node, frame)
            self.write(")")
        elif name is not None and node.attr not in DICT_NAMES:
            self._member_of(name, node.attr)
            super().visit_Getattr(node, frame)
            self.write(")")
        else:
            super().visit_Getattr(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        name, key = _variable(node.node, frame), node.arg
        if name is not None and isinstance(key, nodes.Const) and type(key.value) is str:
            self._member_of(name, key.value)
            super().visit_Getitem(node, frame)
            self.write(")")
        else:
            super().visit_Getitem(node, frame)

    def _member_of(self, name: str, key: str) -> None:
        self.write(f"({name}[{key!r}] if type({name}) is dict and {key!r} in {name} else ")

    @optimizeconst
    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        first, operands = node.left, [node.right]
        while len(operands) < _MAX_OPERANDS - 1 and isinstance(first, nodes.Add):
            operands.append(first.right)
            first = first.left
        self.write("environment.sum(")
        for operand in (first, *reversed(operands)):
            self.visit(operand, frame)
            self.write(", ")
        self.write(")")


def _variable(node: nodes.Expr, frame: Frame) -> str | None:
    """The Python variable, which may hold `missing`. None for any other expression."""
    return frame.symbols.ref(node.name) if isinstance(node, nodes.Name) else None
