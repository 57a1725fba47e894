"""The bounds of methods and filters of chat templates, without a rendering."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from openai_frontend.prompting.template_calls import FILTERS, check_percent, checked_arguments
from openai_frontend.prompting.template_limits import MAX_CHARACTERS, MAX_ITEMS, TemplateLimit

HUGE = MAX_CHARACTERS + 1
MANY = MAX_ITEMS + 1
LONG, LINES = "a" * 70_000, "a\n" * 1000

# method, value, what is allowed, and what is refused: arguments by position, or by name
METHODS: dict[str, tuple[str, Any, Any]] = {
    "center": ("a", (9,), (HUGE,)),
    "ljust": ("a", {"width": 9}, {"width": HUGE}),
    "zfill": ("a", ("9",), (HUGE,)),
    "expandtabs": ("\ta", (8,), (HUGE,)),
    "replace": (LONG, ("a", "b"), ("a", "b" * 200)),
    "strip": (LONG, ("a",), ("b" * 1000,)),
    "rfind": (LONG, ("b",), (LONG,)),
    "split": ("," * MANY, (None, 1), (",",)),
    "join": (", " * 1000, (["a", "b"],), (["a"] * 5000,)),
    "upper": ("\u0390" * 9, (), None),
}

FILTER_CALLS: dict[str, tuple[Any, Any, Any]] = {
    "center": ("a", (9,), (HUGE,)),
    "indent": (LINES, (4,), (10_000,)),
    "round": (1.5, (2,), (301,)),
    "tojson": ([1], (None, 2), (None, 65)),
    "batch": ([1], (3, "x"), (MANY,)),
    "slice": ([1], {"slices": 3}, {"slices": MANY}),
    "wordcount": ("a b", (), None),
    "urlize": ("a", (10,), (70_000,)),
    "title": ("a", (), None),
    "join": (["a"] * 5000, (",",), (", " * 1000,)),
    "format": ("%s", ("a",), ("a" * HUGE,)),
    "escape": ("a", (), None),
}


def call(check: Any, value: Any, arguments: Any) -> None:
    if isinstance(arguments, dict):
        check(value, (), arguments)
    else:
        check(value, arguments, {})


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_texts(name):
    """A method is checked by its arguments before it runs."""
    value, allowed, refused = METHODS[name]

    def check(value: Any, args: Any, named: Any) -> None:
        checked_arguments(value, name, args, named)

    call(check, value, allowed)
    if refused is not None:
        with pytest.raises(TemplateLimit):
            call(check, value, refused)


@pytest.mark.parametrize("name", FILTER_CALLS)
def test_filters(name):
    """A filter is checked by its arguments before it runs."""
    value, allowed, refused = FILTER_CALLS[name]

    call(FILTERS[name], value, allowed)
    if refused is not None:
        with pytest.raises(TemplateLimit):
            call(FILTERS[name], value, refused)


TOO_LARGE = {
    "title": ("a" * 70_000, ()),
    "wordcount": ("a" * 70_000, ()),
    "escape": ("a" * (MAX_CHARACTERS // 5), ()),
    "upper": ("\u0390" * (MAX_CHARACTERS // 2), ()),
    "indent": ("a", ("b" * HUGE,)),
    "tojson": ([1], (None, " " * 65)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_filters_of_large_values(name):
    """Values that a filter would enlarge, or read for too long, are refused."""
    value, arguments = TOO_LARGE[name]

    with pytest.raises(TemplateLimit):
        FILTERS[name](value, arguments, {})


def test_separators_of_json():
    """A long separator is refused."""
    with pytest.raises(TemplateLimit):
        FILTERS["tojson"]([1], (), {"separators": ("a" * 65, ":")})


def test_methods_that_are_not_listed():
    """A method that the table lacks cannot be called, on any type."""
    for value, name in (("a", "encode"), ([1], "append"), ({}, "update"), (object(), "x")):
        with pytest.raises(SecurityError):
            checked_arguments(value, name, (), {})


@pytest.mark.parametrize(
    ("template", "values", "refused"),
    [
        ("%s %d", ("a", 1), False),
        ("%(a)s", {"a": "b"}, False),
        (b"%s", "a", False),
        ("%*d", (9, 1), False),
        ("%*d", (HUGE, 1), True),
        (f"%{HUGE}d", 1, True),
        ("%999999999d", 1, True),
        ("%(a)s" * 9000, {"a": "b" * 1000}, True),
    ],
    ids=str,
)
def test_percent(template, values, refused):
    """The % operator is bounded by widths, numbers for `*`, and the sizes of values."""
    if not refused:
        check_percent(template, values)
        return
    with pytest.raises(TemplateLimit):
        check_percent(template, values)
