"""How the fields of a request type are found, and how the page shows them."""

from typing import Literal, NotRequired

from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.api.conformance.endpoints import Endpoint, endpoint, resource_fields
from tests.api.conformance.page import Claim, Conformance
from tests.api.conformance.request_fields import RequestField, request_fields


class Named(TypedDict):
    name: str


class Function(TypedDict):
    type: Literal["function"]
    function: Named


class Custom(TypedDict, total=False):
    type: Literal["custom"]
    format: NotRequired[dict[str, int]]


class Sent(TypedDict):
    plain: int | None
    tools: NotRequired[list[Function | Custom]]
    choice: Literal["none", "auto"] | Named


class Read(BaseModel):
    plain: int
    tools: list[Function | Custom] | None = None
    extra: Named


def names(*fields: RequestField) -> list[str]:
    return [field.name for field in fields]


def test_nested_fields_and_kinds():
    """Objects are walked; the kinds of a union, and strings next to objects, get names."""
    assert names(*request_fields(Sent)) == [
        "plain", "tools", "tools.function", "tools.function.name", "tools.custom",
        "tools.custom.format", "choice", "choice.none", "choice.auto", "choice.name",
    ]  # fmt: skip


def test_fields_that_only_our_schema_has():
    """A field that the SDK's type has at the same JSON path is not listed as our own."""
    assert names(*endpoint("x", "X", Sent, Read).own_fields) == ["extra", "extra.name"]


def test_methods_of_a_resource():
    """An endpoint without a request type has its methods and their arguments."""

    class Resource:
        def retrieve(self, model, *, extra_headers=None, timeout=None): ...

        def _private(self): ...

    assert names(*resource_fields(Resource)) == ["retrieve", "retrieve.model"]


FIELDS = [RequestField("a", "a"), RequestField("a.b", "a.b"), RequestField("c", "c")]


def conformance(*claims: tuple[str, str]) -> Conformance:
    found = [Claim(field, status, f"test_{status}") for field, status in claims]
    return Conformance(found, [Endpoint("x", "X", FIELDS)])


def test_field_without_a_mark_is_a_gap():
    """A mark on the enclosing field does not show how the inner field is handled."""
    assert conformance(("x.a", "honoured")).gaps() == ["x.a.b", "x.c"]


def test_fields_inside_a_refused_field_are_refused():
    found = conformance(("x.a", "refused"), ("x.c", "accepted"))

    assert found.gaps() == []
    assert "| `a.b` | refused | as `a` |" in found.page()


def test_field_that_is_honoured_and_refused():
    """The page shows both results, each with its test."""
    page = conformance(("x.c", "refused"), ("x.c", "honoured")).page()

    row = "| `c` | honoured, refused | honoured:<br>`test_honoured`<br>refused:<br>`test_refused` |"
    assert row in page


def test_mark_with_a_misspelt_name_is_reported():
    assert conformance(("x.d", "honoured"), ("y.a", "refused")).unknown() == ["x.d", "y.a"]
