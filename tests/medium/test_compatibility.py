"""Names outside of the public API of other packages: declared, present, and required."""

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.routing import APIRoute
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openai_frontend.runtime import compatibility
from openai_frontend.runtime.compatibility import PrivateNames, UnsupportedPackage
from openai_frontend.server import http1, http_protocol
from openai_frontend.server.http_protocol import LimitedHttpProtocol, WrappedHttpProtocol
from openai_frontend.server.internal_server import InternalServer
from openai_frontend.server.process import GatewayProcess

DECLARED = [each for each in vars(compatibility).values() if isinstance(each, PrivateNames)]
REQUIRED = [(each, name) for each in compatibility.REQUIRED for name in each.names]


def with_owner(private: PrivateNames) -> str:
    return private.owner


@pytest.mark.parametrize("private", DECLARED, ids=with_owner)
def test_installed_package_has_the_declared_names(private):
    """The failure names what a new version of the package has changed."""
    owner: Any = private.load()
    if private is compatibility.ROUTE:  # functions of FastAPI assign them, not its methods
        owner = APIRoute("/{a}", lambda a: a)

    assert compatibility.missing(owner, private.names) == []


@pytest.mark.parametrize("ours", [LimitedHttpProtocol, GatewayProcess, InternalServer])
def test_overridden_methods_have_the_parameters_of_uvicorn(ours):
    """uvicorn calls them. The failure names what a new version has changed."""
    try:
        compatibility.require_same_parameters("uvicorn", ours)
    except UnsupportedPackage as error:
        changed = str(error)
    else:
        changed = ""

    assert changed == ""


OVERRIDES = [
    (HttpToolsProtocol, LimitedHttpProtocol, "_start_asgi_task"),
    (HttpToolsProtocol, LimitedHttpProtocol, "send_400_response"),
    (uvicorn.Server, GatewayProcess, "startup"),
    (uvicorn.Server, InternalServer, "capture_signals"),
]


@pytest.mark.parametrize(("theirs", "ours", "name"), OVERRIDES, ids=str)
def test_other_parameters_are_an_error(monkeypatch, theirs, ours, name):
    monkeypatch.setattr(theirs, name, lambda self, new: None)

    with pytest.raises(UnsupportedPackage, match=rf"{theirs.__name__}\.{name} takes \(self, new\)"):
        compatibility.require_same_parameters("uvicorn", ours)


def test_protocol_uses_no_other_names_of_uvicorn():
    """Names of its own objects that the sources read, beside those that this project defines."""
    used = {*_attributes(http_protocol, "self"), *_attributes(http_protocol, "super")}
    classes = {*vars(LimitedHttpProtocol), *vars(WrappedHttpProtocol)}
    own = {*classes, *_assigned(http_protocol)} - {*vars(HttpToolsProtocol)}
    cycle = {*_attributes(http_protocol, "cycle"), *_attributes(http1, "cycle")}

    assert used - own - {"__init__"} - {*compatibility.PROTOCOL.names} == set()
    assert cycle - {*compatibility.CYCLE.names} == set()


def _attributes(module: Any, of: str) -> Iterator[str]:
    """Attributes of `self`, of `super()` or of a variable."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(owner, ast.Name) and owner.id == of:
                yield node.attr


def _assigned(module: Any) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


@pytest.mark.parametrize(("private", "name"), REQUIRED, ids=str)
def test_server_does_not_start_without_a_required_name(monkeypatch, private, name):
    """The error says what is missing, and which versions to install."""
    without(monkeypatch, private, name)

    with pytest.raises(UnsupportedPackage) as refused:
        compatibility.require()

    version = importlib.metadata.version(private.package)
    assert str(refused.value) == (
        f"{private.package} {version} is not supported:"
        f" {private.owner.replace(':', '.')} has no {name}."
        f" Install '{compatibility.supported(private.package)}'."
    )


def without(monkeypatch: pytest.MonkeyPatch, private: PrivateNames, name: str) -> None:
    """The class then lacks one of its declared names."""
    names = dict.fromkeys(each for each in private.names if each != name)
    stand_in = type(private.owner.partition(":")[2], (), names)
    load = PrivateNames.load
    monkeypatch.setattr(
        PrivateNames, "load", lambda self: stand_in if self.owner == private.owner else load(self)
    )


@pytest.mark.parametrize("owner", ["uvicorn.gone:Server", "uvicorn:Gone"])
def test_missing_class_is_an_error(owner):
    with pytest.raises(UnsupportedPackage, match=f"it has no {owner.replace(':', '.')}"):
        compatibility.require([PrivateNames("uvicorn", owner, ())])


class Assigning:
    """Has `later` only after a call."""

    def __init__(self) -> None:
        self.first = 1

    def load(self, other: Any) -> None:
        self.later = other.read


def test_instances_have_what_methods_of_the_class_assign():
    """Not what the methods read of other objects."""
    names = ["first", "later", "load", "other", "read"]

    assert compatibility.missing(Assigning, names) == ["other", "read"]
    assert compatibility.missing(Assigning(), names) == ["later", "other", "read"]


def test_ranges_are_those_of_the_package():
    """From its metadata, so also for those who have no pyproject.toml."""
    assert compatibility.supported("jinja2") == "jinja2<3.2,>=3.1.6"
    assert compatibility.supported("no-such") == "no-such"


def test_versions_out_of_range_are_logged(monkeypatch, caplog):
    """Each on one line; packages of extras only if they are installed."""
    installed = {"uvicorn": "0.99", "pyzmq": None, "jinja2": "3.1.7"}
    monkeypatch.setattr(compatibility, "_version", installed.get)

    compatibility.warn_of_untested()

    assert [record.getMessage() for record in caplog.records] == [
        "uvicorn 0.99 is not tested with this version of openai-frontend;"
        f" supported: {compatibility.supported('uvicorn')}"
    ]


def test_installed_versions_are_in_range(caplog):
    compatibility.warn_of_untested()

    assert caplog.messages == []


def test_package_that_is_not_installed_has_no_ranges(monkeypatch):
    """Such as sources on the path."""
    monkeypatch.setattr(compatibility, "DISTRIBUTION", "no-such-distribution")

    assert compatibility.supported("uvicorn") == "uvicorn"
