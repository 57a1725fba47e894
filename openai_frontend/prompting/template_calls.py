"""Checks the methods and filters that a chat template calls before they run.

Each entry of `METHODS` and `FILTERS` bounds the result, or the work, by the arguments. A method
that is not listed cannot be called, and a filter that is not listed does not exist.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from markupsafe import Markup

from openai_frontend.prompting.template_limits import (
    CONTAINERS,
    MAX_CHARACTERS,
    MAX_ITEMS,
    SMALL,
    TemplateLimit,
    bounded,
    created,
    require_characters,
    require_items,
    size_of,
    work,
)

# Raises TemplateLimit. Gets the value, the other arguments by position, and those by name.
Check = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]

_MAX_SHORT = 64 * 1024  # characters for a filter that takes microseconds for each
_MAX_PRODUCT = 1 << 26  # steps of a search that compares each character with each of another text
_MAX_INDENT = 64
_MAX_DIGITS = 300  # of a rounded number
_MAX_NUMBER = 1300  # characters of a number without a width


def _argument(index: int, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """An argument that may be given by position or by name; otherwise None."""
    return args[index] if len(args) > index else named.get(name)


def _free(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """The result is at most as large as the value."""


def _case(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A character may become three: "ΐ" in upper case."""
    if isinstance(value, str) and not value.isascii():
        require_characters(3 * len(value))


def _escape(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A character may become five or six, such as `&quot;`."""
    require_characters(6 * size_of(value))


def _short(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Whether values and arguments are short."""
    for each in (value, *args, *named.values()):
        size_of(each, _MAX_SHORT)
        if isinstance(each, int) and abs(each) > _MAX_SHORT:
            raise TemplateLimit(f"a number is larger than {_MAX_SHORT}")


def _width(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    width = _argument(0, "width", args, named)
    if isinstance(width, int):
        require_characters(width)


def _tabs(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    size = _argument(0, "tabsize", args, named)
    if isinstance(size, int):
        require_characters(len(value) + value.count("\t") * size)


def _replace(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    old, new = _argument(0, "old", args, named), _argument(1, "new", args, named)
    if isinstance(value, str) and isinstance(old, str) and isinstance(new, str):
        require_characters(len(value) + value.count(old) * len(new))


def _strip(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    _product_of(value, _argument(0, "chars", args, named))


def _search(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Searching backwards compares each position with the text."""
    for each in (*args, *named.values()):
        _product_of(value, each)


def _product_of(value: Any, other: Any) -> None:
    if isinstance(value, str) and isinstance(other, str) and len(value) * len(other) > _MAX_PRODUCT:
        raise TemplateLimit("a search takes too long")


def _split(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    _search(value, args, named)
    separator = _argument(0, "sep", args, named)
    if isinstance(separator, str):
        require_items(value.count(separator))
    elif len(value) > 2 * MAX_ITEMS:
        require_items(len(value.split(None, MAX_ITEMS + 1)))


_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _lines(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    require_items(sum(map(value.count, _LINE_ENDS)))


def _indent(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    width = _argument(0, "width", args, named)
    if isinstance(width, str):
        width = len(width)
    if isinstance(width, int):
        require_characters(width)
        if isinstance(value, str):
            _lines(value, (), {})
            require_characters(len(value) + (1 + sum(map(value.count, _LINE_ENDS))) * width)


def _join(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Join a list: `checked_filter` and `checked_method` turn other iterables into one."""
    separator = str(_argument(0, "d", args, named) or "")
    require_characters(sum(map(size_of, value)) + len(value) * len(separator))


def _batch(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    for each in (*args, *named.values()):
        if isinstance(each, int):
            require_items(each)


def _round(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    digits = _argument(0, "precision", args, named)
    if isinstance(digits, int) and abs(digits) > _MAX_DIGITS:
        raise TemplateLimit(f"rounding to more than {_MAX_DIGITS} digits")


def _json_form(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    indent = _argument(1, "indent", args, named)
    if isinstance(indent, str):
        indent = len(indent)
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise TemplateLimit(f"an indent is larger than {_MAX_INDENT}")
    for separator in _argument(2, "separators", args, named) or ():
        if isinstance(separator, str) and len(separator) > _MAX_INDENT:
            raise TemplateLimit(f"a separator is longer than {_MAX_INDENT}")


def _percent(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Python's % operator, for the filter `format`."""
    if args and named:
        return  # the filter refuses it
    check_percent(value, named or args)


def check_percent(template: Any, values: Any) -> None:
    """Bound what `template % values` makes: widths and precisions are digits or `*`."""
    if not isinstance(template, str):
        return
    conversions = template.count("%")
    by_name = isinstance(values, Mapping)
    parts = list(values.values()) if by_name else values if isinstance(values, tuple) else [values]
    numbers = [abs(each) for each in parts if isinstance(each, int)] if "*" in template else []
    widest = max([_largest_number(template), *numbers])
    sizes = [size_of(each) for each in parts] or [0]
    printed = conversions * max(sizes) if by_name else sum(sizes)
    require_characters(len(template) + printed + conversions * (widest + _MAX_NUMBER))


def _largest_number(text: str) -> int:
    """The largest run of digits as a number; counts runs of more than eight digits as too large."""
    digits = "".join(each if each in "0123456789" else " " for each in text).split(None, MAX_ITEMS)
    longest = max(digits, key=len, default="")
    if len(longest) > 8:
        return MAX_CHARACTERS + 1
    return max(map(int, digits), default=0)


class _LimitedFormat(SandboxedFormatter):
    """str.format with a limit for what it makes."""

    _made = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        if (width := _largest_number(format_spec)) > MAX_CHARACTERS:
            require_characters(width)
        size_of(value)
        text: str = super().format_field(value, format_spec)
        self._made += len(text)
        require_characters(self._made)
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        size_of(value)
        return super().convert_field(value, conversion)


class _LimitedMarkupFormat(_LimitedFormat, SandboxedEscapeFormatter):
    pass


def limited_format(environment: Any, method: Any) -> Callable[..., str]:
    """The method `format` or `format_map` of a text, for templates."""
    text = method.__self__

    def formatted(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        formatter = (
            _LimitedMarkupFormat(environment, escape=text.escape)
            if isinstance(text, Markup)
            else _LimitedFormat(environment)
        )
        return created(type(text)(formatter.vformat(text, args, named)))

    if method.__name__ == "format_map":
        return lambda mapping: formatted((), mapping)
    return lambda *args, **named: formatted(args, named)


_STR_METHODS: dict[str, Check] = {
    "capitalize": _case, "casefold": _case, "lower": _case, "swapcase": _case, "title": _case,
    "upper": _case,
    "center": _width, "ljust": _width, "rjust": _width, "zfill": _width, "expandtabs": _tabs,
    "count": _free, "endswith": _free, "find": _free, "index": _free, "partition": _free,
    "removeprefix": _free, "removesuffix": _free, "startswith": _free,
    "rfind": _search, "rindex": _search, "rpartition": _search,
    "isalnum": _free, "isalpha": _free, "isascii": _free, "isdecimal": _free, "isdigit": _free,
    "isidentifier": _free, "islower": _free, "isnumeric": _free, "isprintable": _free,
    "isspace": _free, "istitle": _free, "isupper": _free,
    "join": lambda value, args, named: _join(args[0], (value,), named),
    "lstrip": _strip, "rstrip": _strip, "strip": _strip,
    "replace": _replace, "split": _split, "rsplit": _split, "splitlines": _lines,
    # markup
    "striptags": _short, "unescape": _short,
}  # fmt: skip

METHODS: dict[type, dict[str, Check]] = {
    str: _STR_METHODS,
    list: {"copy": _free, "count": _free, "index": _free},
    tuple: {"count": _free, "index": _free},
    dict: {"copy": _free, "get": _free, "items": _free, "keys": _free, "values": _free},
    int: {"bit_count": _free, "bit_length": _free, "is_integer": _free},
    float: {"is_integer": _free},
    range: {"count": _free, "index": _free},
}


def checked_arguments(
    value: Any, name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments for a method of a text, number or container, after its check.

    Raises TemplateLimit, or SecurityError if templates may not call it.
    """
    check = (METHODS.get(type(value)) or _inherited(value)).get(name)
    if check is None:
        raise SecurityError(f"a template cannot call {type(value).__name__}.{name}")
    if name == "join" and args:
        args = (list_of(args[0]), *args[1:])
    if isinstance(value, str) and len(value) > _MAX_SHORT:
        work(len(value))
    check(value, args, named)
    return args


def _inherited(value: Any) -> dict[str, Check]:
    """The methods of markup and of other subclasses; none for values that are not in the table."""
    return next((METHODS[kind] for kind in type(value).__mro__ if kind in METHODS), {})


def list_of(items: Iterable[Any]) -> Any:
    """The items as a container, if they are not one."""
    return items if isinstance(items, CONTAINERS) else list(bounded(items))


FILTERS: dict[str, Check] = {
    "abs": _free, "attr": _free, "count": _free, "length": _free, "d": _free, "default": _free,
    "first": _free, "last": _free, "float": _free, "int": _free, "filesizeformat": _free,
    "safe": _free, "round": _round,
    # texts
    "capitalize": _case, "lower": _case, "title": _short, "upper": _case, "trim": _strip,
    "center": _width, "replace": _replace, "indent": _indent, "format": _percent,
    "string": _free, "tojson": _json_form, "truncate": _free,
    "e": _escape, "escape": _escape, "forceescape": _escape,
    "pprint": _short, "striptags": _short, "urlencode": _short, "urlize": _short,
    "wordcount": _short, "wordwrap": _short, "xmlattr": _short,
    # lists
    "batch": _batch, "slice": _batch, "sum": _short, "join": _join,
    "dictsort": _free, "groupby": _free, "items": _free, "list": _free, "map": _free, "max": _free,
    "min": _free, "random": _free, "reject": _free, "rejectattr": _free, "reverse": _free,
    "select": _free, "selectattr": _free, "sort": _free, "unique": _free,
}  # fmt: skip

# They take all items in one call in C.
_CONSUMING = frozenset(
    {"groupby", "join", "list", "max", "min", "reverse", "slice", "sort", "sum", "xmlattr"}
)
# Their result is an argument, or a part of one.
_CREATE_NOTHING = frozenset(
    {"attr", "d", "default", "first", "last", "max", "min", "random", "safe", "length", "count"}
)


def checked_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its check."""
    check = FILTERS[name]
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # after Jinja's context
    consuming, creates = name in _CONSUMING, name not in _CREATE_NOTHING

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if len(args) > first:
            if len(args) == first + 1 and not named and _is_small(args[first]):
                return function(*args)  # nothing without arguments makes much of it
            value = args[first]
            if isinstance(value, str):
                if len(value) > _MAX_SHORT:
                    work(len(value))
                if consuming:
                    require_items(len(value))
            elif consuming and not isinstance(value, CONTAINERS):
                value = list_of(value)
                args = (*args[:first], value, *args[first + 1 :])
            check(value, args[first + 1 :], named)
        result = function(*args, **named)
        return created(result) if creates else result

    return checked


def _is_small(value: Any) -> bool:
    return type(value) is str and len(value) <= SMALL


def checked_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Jinja's filters with their checks, where they need one."""
    return {
        name: filters[name]
        if check is _free and name not in _CONSUMING
        else checked_filter(name, filters[name])
        for name, check in FILTERS.items()
    }
