"""Constraints of your own. A package offers one by an entry point:

    [project.entry-points."openai_frontend.constraints"]
    digits = "my_package.digits:Digits"

The class is installed by whoever runs the gateway; nothing of a request names code.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points

from openai_frontend.generation import StructuredOutputs
from schemas.sampling import SamplingFields

GROUP = "openai_frontend.constraints"
PROCESSOR = "logits_processor"  # the member of extra_args that says which one is meant

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessor:
    """A logits processor that the engine has loaded. It finds its name in the request's
    `extra_args["logits_processor"]` and its arguments beside it.
    """

    name: str
    arguments: Mapping[str, Scalar | Sequence[Scalar]] = field(default_factory=dict)


class ConstraintPlugin(ABC):
    """Looks at each request for text. Made once, without arguments, when the server starts."""

    name = ""  # the entry point's, set when it is loaded

    @abstractmethod
    def constraint(self, request: SamplingFields) -> StructuredOutputs | LogitsProcessor | None:
        """What the answer is held to; None leaves the request alone. Runs on the event loop, so
        it must be quick.

        StructuredOutputs stand in the place of the request's own form of its answer: they compose
        with tools and reasoning, and a request that asks for another form is refused. To refuse a
        request, raise `openai_frontend.errors.InvalidRequest`.
        """


@cache
def installed() -> tuple[ConstraintPlugin, ...]:
    """Every plug-in of this environment, in the order of their names. Raises where one cannot be
    loaded, so that a server does not start without it.
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
    """What the plug-ins say of one request, and which of them asks for structure."""

    structured: StructuredOutputs | None = None
    by: str = ""
    extra_args: Mapping[str, object] = field(default_factory=dict)


NOTHING = PluginConstraint()


def plugin_constraint(request: SamplingFields) -> PluginConstraint:
    """The first plug-in that has something to say decides."""
    for plugin in installed():
        held = plugin.constraint(request)
        if isinstance(held, StructuredOutputs):
            return PluginConstraint(structured=held, by=plugin.name)
        if isinstance(held, LogitsProcessor):
            return PluginConstraint(
                by=plugin.name, extra_args={**held.arguments, PROCESSOR: held.name}
            )
    return NOTHING
