"""Checks of the installed packages at start-up: their versions, and names in them outside of
their public API.

The names are declared here, once: a release of such a package may rename them without notice.
"""

import dis
import importlib
import importlib.metadata
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import signature
from types import FunctionType

from packaging.requirements import Requirement

logger = logging.getLogger(__name__)

DISTRIBUTION = "openai-frontend"


class UnsupportedPackage(Exception):
    """An installed package with which requests would be answered wrongly."""

    def __init__(self, package: str, reason: str) -> None:
        super().__init__(
            f"{package} {importlib.metadata.version(package)} is not supported: {reason}."
            f" Install '{supported(package)}'."
        )


@dataclass(frozen=True, slots=True)
class PrivateNames:
    """Attributes and methods of another package's class."""

    package: str
    owner: str  # module:class
    names: tuple[str, ...]

    def load(self) -> type:
        """The class. Raises UnsupportedPackage if it is gone."""
        module, _, name = self.owner.partition(":")
        try:
            found: type = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            raise UnsupportedPackage(self.package, f"it has no {module}.{name}") from None
        return found


# server/http_protocol.py
PROTOCOL = PrivateNames(
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol",
    (
        "app", "client", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline",
        "scope", "server_state", "timeout_keep_alive_task", "transport", "url",
        "connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing",
        "on_message_begin", "on_url", "on_header", "on_headers_complete", "on_message_complete",
        "on_response_complete",
        "_start_asgi_task", "_unsupported_upgrade_warning", "send_400_response",
    ),
)  # fmt: skip
# server/http_protocol.py, server/http1.py
CYCLE = PrivateNames(
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl:RequestResponseCycle",
    (
        "chunked_encoding", "disconnected", "expected_content_length", "keep_alive",
        "message_event", "response_complete", "response_started", "scope", "send",
        "waiting_for_100_continue",
    ),
)  # fmt: skip
# middleware/direct_writer.py
DIRECT_WRITES = PrivateNames(
    "uvicorn",
    CYCLE.owner,
    (
        "access_log", "chunked_encoding", "default_headers", "disconnected", "flow", "keep_alive",
        "message_event", "on_response", "response_complete", "response_started", "scope", "send",
        "transport", "waiting_for_100_continue",
    ),
)  # fmt: skip
FLOW = PrivateNames(
    "uvicorn",
    "uvicorn.protocols.http.flow_control:FlowControl",
    ("read_paused", "write_paused"),
)
# server/process.py, server/internal_server.py
SERVER = PrivateNames(
    "uvicorn",
    "uvicorn:Server",
    (
        "capture_signals", "config", "main_loop", "serve", "server_state", "should_exit",
        "shutdown", "startup",
    ),
)  # fmt: skip
SERVER_STATE = PrivateNames("uvicorn", "uvicorn.server:ServerState", ("default_headers", "tasks"))
CONFIG = PrivateNames(
    "uvicorn",
    "uvicorn:Config",
    ("date_header", "encoded_headers", "load", "ssl", "timeout_graceful_shutdown"),
)
# app.py
ERROR_MIDDLEWARE = PrivateNames(
    "starlette", "starlette.middleware.errors:ServerErrorMiddleware", ("app",)
)
# routers/routing.py
ROUTE = PrivateNames(
    "fastapi",
    "fastapi.routing:APIRoute",
    ("endpoint", "get_route_handler", "methods", "param_convertors", "path"),
)
# prompting/template_environment.py
TEMPLATE_ENVIRONMENT = PrivateNames(
    "jinja2", "jinja2.sandbox:SandboxedEnvironment", ("_parse", "concat", "wrap_str_format")
)
# engines/vllm/zmq_io.py
SOCKET = PrivateNames("pyzmq", "zmq.asyncio:Socket", ("_get_loop", "_send_futures", "_shadow_sock"))

# Without these, limits and the shutdown would not work.
REQUIRED = (PROTOCOL, CYCLE, FLOW, SERVER, SERVER_STATE, CONFIG, TEMPLATE_ENVIRONMENT)


def check(private: PrivateNames, owner: object | None = None, *, otherwise: str) -> bool:
    """Whether the class, or the object `owner`, has all of the names. If not, logs what follows."""
    absent = missing(private.load() if owner is None else owner, private.names)
    if absent:
        logger.warning(
            "%s %s: %s has no %s, so %s; supported: %s",
            private.package,
            importlib.metadata.version(private.package),
            private.owner.replace(":", "."),
            ", ".join(absent),
            otherwise,
            supported(private.package),
        )
    return not absent


def require(needed: Iterable[PrivateNames] = REQUIRED) -> None:
    """Raises UnsupportedPackage for the first class that lacks a name."""
    for private in needed:
        if absent := missing(private.load(), private.names):
            owner = private.owner.replace(":", ".")
            raise UnsupportedPackage(private.package, f"{owner} has no {', '.join(absent)}")


def require_same_parameters(package: str, ours: type) -> None:
    """Raises UnsupportedPackage if a method of a subclass of ours has other parameters than the one
    that it overrides: the package calls it.
    """
    theirs = next(base for base in ours.__mro__ if base.__module__.partition(".")[0] == package)
    for name, method in vars(ours).items():
        overridden = vars(theirs).get(name)
        if name.startswith("__") or not (callable(method) and callable(overridden)):
            continue
        expected, found = ([*signature(each).parameters] for each in (method, overridden))
        if expected != found:
            raise UnsupportedPackage(
                package,
                f"{theirs.__module__}.{theirs.__qualname__}.{name} takes ({', '.join(found)})"
                f" instead of ({', '.join(expected)})",
            )


def missing(owner: object, names: Iterable[str]) -> list[str]:
    """The names that an object lacks. An instance of a class will have what its methods assign."""
    absent = {*names} - {*dir(owner)}
    if isinstance(owner, type) and absent:
        functions = (each for base in owner.__mro__ for each in vars(base).values())
        absent -= {
            instruction.argval
            for function in functions
            if isinstance(function, FunctionType) and absent & {*function.__code__.co_names}
            for instruction in dis.get_instructions(function)
            if instruction.opname == "STORE_ATTR"
        }
    return sorted(absent)


def supported(package: str) -> str:
    """The requirement of pyproject.toml, such as `uvicorn<0.55,>=0.47`."""
    found = [each for each in _requirements() if each.name == package]
    return f"{package}{found[0].specifier}" if found else package


def warn_of_untested() -> None:
    """Logs each installed package whose version is outside of the range of pyproject.toml."""
    for requirement in _requirements():
        version = _version(requirement.name)
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            logger.warning(
                "%s %s is not tested with this version of openai-frontend; supported: %s",
                requirement.name,
                version,
                supported(requirement.name),
            )


def _requirements() -> list[Requirement]:
    """Empty if this package is imported without being installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    # The engine knows the versions of vLLM itself (engines/vllm/versions.py).
    return [each for each in map(Requirement, lines) if not each.name.startswith("vllm")]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
