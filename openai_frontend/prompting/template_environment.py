"""The sandbox in which chat templates run: Hugging Face's dialect of Jinja, with limits.

Templates never come from requests, only from the model's files or the operator. They may still come
from an untrusted repository, so the sandbox gives no access to anything and limits resources.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, reduce
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import orjson
from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from openai_frontend.prompting.template_calls import (
    check_percent,
    checked_arguments,
    checked_filters,
    limited_format,
    list_of,
)
from openai_frontend.prompting.template_code import DICT_NAMES, LOOP_NAMES, TemplateCode
from openai_frontend.prompting.template_limits import (
    MAX_BITS,
    SMALL,
    Budget,
    TemplateLimit,
    count_bytes,
    created,
    refuse_number,
    render_within,
    require_characters,
    require_items,
    running,
    size_of,
    work,
)

_PIECES_PER_CHECK = 256
_FEW_ITEMS = 64
_MAX_DATE_FORMAT = 256  # characters; Python's result has at most 256 times as many


def render(source: str, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises whatever a template may raise, including TemplateLimit."""
    template = _compiled(source)
    given, shared = {**template.globals, **variables}, template.globals
    context = Context(_ENVIRONMENT, given, template.name, template.blocks, shared)
    # Like `Template.render`, which takes five calls more
    write = template.root_render_func
    return render_within(Budget(variables), lambda: _ENVIRONMENT.concat(write(context)))


def variables_of(source: str) -> frozenset[str]:
    """The undeclared variables of the template. Raises TemplateSyntaxError."""
    return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))


@lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    template = _ENVIRONMENT.from_string(source)
    # Each rendering copies the globals: 7 us from Jinja's ChainMap, 1 us from a plain dict.
    template.globals = dict(template.globals)
    return template


def _counted(items: Iterable[Any]) -> Iterable[Any]:
    """The items of a loop, with a step for each; those of a short one at once."""
    budget = running.budget or Budget()
    if type(items) is list and len(items) <= _FEW_ITEMS:
        budget.step(len(items))
        return items
    return _counted_one_by_one(items, budget)


def _counted_one_by_one(items: Iterable[Any], budget: Budget) -> Iterator[Any]:
    for item in items:
        budget.step()
        yield item


def _joined(parts: Iterable[Any]) -> str:
    return _concat([*map(str, parts)])


def _concat(pieces: Sequence[str]) -> str:
    if (size := sum(map(len, pieces))) > SMALL:
        require_characters(size)
        return created("".join(pieces))  # type: ignore[no-any-return]
    return "".join(pieces)


def _collected(pieces: Iterator[str]) -> list[str]:
    """The pieces in a list that `live_bytes` sees while it grows."""
    collected: list[str] = []
    size = checked = 0
    while True:
        collected.extend(islice(pieces, _PIECES_PER_CHECK))
        if len(collected) - checked < _PIECES_PER_CHECK:
            return collected
        size += sum(map(len, islice(collected, checked, None)))
        require_characters(size)
        checked = len(collected)


def _sum(*operands: Any) -> Any:
    """A chain of `+`, from left to right."""
    for each in operands:
        if type(each) is not str:
            return reduce(_sum_of_two, operands)
    return "".join(operands) if sum(map(len, operands)) <= SMALL else _concat(operands)


def _sum_of_two(left: Any, right: Any) -> Any:
    value = left + right
    return _sum_of_lists(left, right, value) if type(value) is list else created(value)


def _sum_of_lists(left: Any, right: Any, value: list[Any]) -> Any:
    """Does not look at all items: many templates make a list longer in a loop."""
    budget = running.budget or Budget()
    size = budget.size_of_list(left, replaced=True) + budget.size_of_list(right)
    require_characters(size)
    require_items(len(value))
    count_bytes(value)
    budget.add_list(value, size)
    return value


def _product(left: Any, right: Any) -> Any:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            require_characters(size_of(value) * times)
            if not isinstance(value, str):
                require_items(len(value) * times)
    return created(left * right)


def _remainder(left: Any, right: Any) -> Any:
    check_percent(left, right)
    return created(left % right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and left.bit_length() * right > MAX_BITS:
        refuse_number()
    return left**right


def _sliced(value: Any) -> Any:
    """It is not larger than what it is a part of."""
    if isinstance(value, (str, list, tuple)) and len(value) > SMALL:
        count_bytes(value)
    return value


def _searched(value: Any) -> Any:
    if isinstance(value, str):
        work(len(value))
    return value


def _buffered(value: Any) -> str:
    """Text for a macro or a block, which collects it in a list of its own."""
    text = str(value)
    count_bytes(text)
    return text


class _Limiting(NodeTransformer):
    """Adds the budget to loops, `~`, `in`, slices, and lists: as filters that cost a call each."""

    def __init__(self) -> None:
        self._buffers = 0  # macros and blocks around the node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        if self._buffers:
            node.nodes = [
                each if isinstance(each, nodes.TemplateData) else _filtered(each, "_buffered")
                for each in node.nodes
            ]
        return node

    def _buffer(self, node: nodes.Node) -> nodes.Node:
        self._buffers += 1
        self.generic_visit(node)
        self._buffers -= 1
        return node

    visit_Macro = visit_CallBlock = visit_FilterBlock = visit_AssignBlock = _buffer

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _filtered(parts, "_joined")

    def visit_Operand(self, node: nodes.Operand) -> nodes.Operand:
        self.generic_visit(node)
        if node.op in ("in", "notin") and not isinstance(node.expr, nodes.List | nodes.Tuple):
            node.expr = _filtered(node.expr, "_searched")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, "_sliced") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return node if _is_constant(node.items) else _filtered(node, "_created")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        constant = node.ctx != "load" or _is_constant(node.items)
        return node if constant else _filtered(node, "_created")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        constant = _is_constant([each.value for each in node.items])
        return node if constant else _filtered(node, "_created")


def _is_constant(items: Iterable[nodes.Node]) -> bool:
    return all(isinstance(item, nodes.Const) for item in items)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(
        node, name, [], [], None, None, lineno=node.lineno, environment=node.environment
    )


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it only outputs its body."""

    tags = {"generation"}  # noqa: RUF012  as in Jinja's base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _remove_jinjas(kwargs: dict[str, Any]) -> None:
    """Remove the arguments that Jinja adds to each call in a loop or block."""
    if kwargs:
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)


class _Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = TemplateCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})  # operators that can create large values
    sum = staticmethod(_sum)  # what the template's code calls for `+`

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Like the sandbox's method, but for `message.role` without the exception on the way there.

        It makes a chat of 21 messages render in 310 us instead of 450.
        """
        if type(obj) is dict and attribute not in DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, /, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Macros count too: they can call themselves, even twice."""
        if (budget := running.budget) is not None:
            budget.step()
        kind = type(obj)
        if kind is Macro:
            _remove_jinjas(kwargs)
            return obj(context.eval_ctx, *args, **kwargs)
        if kind is BuiltinMethodType or (kind is MethodType and isinstance(obj.__self__, Markup)):
            _remove_jinjas(kwargs)
            args = checked_arguments(obj.__self__, obj.__name__, args, kwargs)
            result = obj(*args, **kwargs)
            return created(result) if isinstance(obj.__self__, str) else result
        if obj is dict:
            return created(super().call(context, obj, *map(list_of, args), **kwargs))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's version has no limits."""
        return limited_format(self, value) if super().wrap_str_format(value) else None

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raises immediately; Jinja's own version would render as nothing until it is used."""
        raise SecurityError(f"access to '{attribute}' is unsafe")

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins the text of a macro, of a `set` block, and of the whole template."""
        return _concat(pieces if type(pieces) is list else _collected(iter(pieces)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Limiting().visit(super()._parse(source, name, filename))
        return tree


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML."""
    form = (ensure_ascii, indent, separators, sort_keys)
    if type(value) is dict and (key := _cache_key(value)) is not None:
        with contextlib.suppress(TypeError):  # a template's own word that has no hash
            return _cached_json(key, form)
    return _json(value, form)


_Form = tuple[bool, int | None, tuple[str, str] | None, bool]


def _json(value: Any, form: _Form) -> str:
    ensure_ascii, indent, separators, sort_keys = form
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


_CACHED_BYTES = range(256, 16 * 1024)


def _cache_key(value: dict[str, Any]) -> bytes | None:
    """The value as orjson writes it, which takes 0.6 us instead of 12 with `json`: the schemas of
    tools repeat with each request of a conversation.

    None if caching is not worth it or the results could differ: orjson's null may stand for a
    number that JSON does not have.
    """
    try:
        key = orjson.dumps(value, option=_AS_JSON)
    except TypeError:
        return None
    return key if len(key) in _CACHED_BYTES and b"null" not in key else None


_AS_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


@lru_cache(maxsize=512)  # at most 16 MB
def _cached_json(key: bytes, form: _Form) -> str:
    return _json(orjson.loads(key), form)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_DATE_FORMAT:
        raise TemplateLimit(f"a format of dates is longer than {_MAX_DATE_FORMAT} characters")
    return datetime.now().strftime(format)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
    )
    environment.binop_table.update({"+": _sum, "*": _product, "**": _power, "%": _remainder})
    environment.filters = {
        **checked_filters({**environment.filters, "tojson": _tojson}),
        "_buffered": _buffered,
        "_counted": _counted,
        "_created": created,
        "_joined": _joined,
        "_sliced": _sliced,
        "_searched": _searched,
    }
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    del environment.globals["lipsum"]
    return environment


_ENVIRONMENT = _environment()
