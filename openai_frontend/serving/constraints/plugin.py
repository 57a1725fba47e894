"""Custom constraints. A package provides one through an entry point:

    [project.entry-points."openai_frontend.constraints"]
    digits = "my_package.digits:Digits"

The operator installs the class; requests cannot name code.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points

from openai_frontend.generation import StructuredOutputs
from schemas.sampling import SamplingFields

GROUP = "openai_frontend.constraints"
PROCESSOR = "logits_processor"  # the member of extra_args that names the processor

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessor:
    """A logits processor that the engine has loaded. The request's `extra_args` have its name under
    "logits_processor" and its arguments beside it.
    """

    name: str
    arguments: Mapping[str, Scalar | Sequence[Scalar]] = field(default_factory=dict)


class ConstraintPlugin(ABC):
    """Sees each request for text. Created once, without arguments, when the server starts."""

    name = ""  # the entry point's, set when it is loaded

    @abstractmethod
    def constraint(self, request: SamplingFields) -> StructuredOutputs | LogitsProcessor | None:
        """The constraint on the output; None leaves the request alone. Runs on the event loop, so
        it must be fast.

        StructuredOutputs replace the request's own output format: they combine with tools and
        reasoning, and a request with another format is rejected. To reject a request, raise
        `openai_frontend.errors.InvalidRequest`.
        """


@cache
def installed() -> tuple[ConstraintPlugin, ...]:
    """Every plug-in of this environment, sorted by name. Raises if one cannot be loaded, so that
    the server does not start without it.
    """
    plugins = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        plugin = point.load()()
        if not isinstance(plugin, ConstraintPlugin):
            raise TypeError(f"the entry point {point.name!r} of {GROUP} is not a ConstraintPlugin")
        plugin.name = point.name
        plugins.append(plugin)
    return tuple(plugins)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConstraint:
    """The plug-ins' result for one request, and the plug-in that constrains it."""

    structured: StructuredOutputs | None = None
    by: str = ""
    extra_args: Mapping[str, object] = field(default_factory=dict)


NOTHING = PluginConstraint()


def plugin_constraint(request: SamplingFields) -> PluginConstraint:
    """The result of the first plug-in that returns one."""
    for plugin in installed():
        result = plugin.constraint(request)
        if isinstance(result, StructuredOutputs):
            return PluginConstraint(structured=result, by=plugin.name)
        if isinstance(result, LogitsProcessor):
            return PluginConstraint(
                by=plugin.name, extra_args={**result.arguments, PROCESSOR: result.name}
            )
    return NOTHING
