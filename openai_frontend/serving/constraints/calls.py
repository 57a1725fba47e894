"""Tool calls as parts of a grammar: in a family's syntax, or as JSON that the parser expects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.arguments import Arguments, SchemaArguments
from openai_frontend.serving.constraints.family_tags import CallForm
from openai_frontend.serving.constraints.formats import Format
from openai_frontend.serving.constraints.json_schema import references

Functions = Mapping[str, Arguments]  # name -> its arguments' constraint

_ANY_CALL = CallForm(
    begin='{"name": "%s", "parameters": ',
    end="}",
    trigger="",
    section=("[", "]"),
    separator=", ",
)


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of these functions in one family's forms. Raises Unconstrainable for arguments that
    the forms cannot express.
    """

    forms: Sequence[CallForm]
    functions: Functions
    one: bool  # at most one call

    def only(self) -> Format:
        """One call or more, and nothing else."""
        return formats.either(*(_section(form, self.functions, self.one) for form in self.forms))

    def within_text(self) -> Format:
        """Any text, with calls in it or after it."""
        triggers: list[str] = []
        tags: list[Format] = []
        for form in self.forms:
            for trigger, tag in _triggered(form, self.functions, self.one):
                if trigger not in triggers:
                    triggers.append(trigger)
                tags.append(tag)
        return formats.within_text(triggers, tags, one=self.one)


def any_call(functions: Functions, *, one: bool) -> Format:
    """A JSON array of calls, for models whose own syntax is not in `family_tags`."""
    return _section(_ANY_CALL, functions, one)


def any_call_schema(
    functions: Mapping[str, SchemaArguments], *, one: bool
) -> dict[str, Any] | None:
    """Like `any_call`, but as a JSON schema; None if references in the schemas would break."""
    if any(True for each in functions.values() for _ in references(each.schema)):
        return None
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": arguments.schema},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, arguments in functions.items()
    ]
    most = {"maxItems": 1} if one else {}
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **most}


def _section(form: CallForm, functions: Functions, one: bool) -> Format:
    calls = [_call(form, name, arguments) for name, arguments in functions.items()]
    content = formats.listed(calls, form.separator, one=one)
    opens, closes = form.section
    return formats.tag(opens, content, closes) if opens else content


def _call(form: CallForm, name: str, arguments: Arguments) -> Format:
    content = arguments.form(form.style)
    if form.numbered:
        number = formats.regex("[0-9]{1,3}")
        content = formats.sequence(number, formats.const(form.numbered), content)
    return formats.tag(form.begin.replace("%s", name), content, form.end)


def _triggered(form: CallForm, functions: Functions, one: bool) -> list[tuple[str, Format]]:
    if "%s" in form.trigger:
        return _by_name(form, functions, one)
    if form.section[0]:
        return [(form.trigger, _section(form, functions, one))]
    calls = [_call(form, name, arguments) for name, arguments in functions.items()]
    return [(form.trigger, call) for call in calls]


def _by_name(form: CallForm, functions: Functions, one: bool) -> list[tuple[str, Format]]:
    """A section that only a function's name distinguishes from text: its begin includes that of
    the first call.
    """
    calls = [_call(form, name, arguments) for name, arguments in functions.items()]
    more = formats.sequence(formats.const(form.separator), formats.either(*calls))
    tags = []
    for name, call in zip(functions, calls, strict=True):
        first = [call["content"], formats.const(call["end"])]
        content = formats.sequence(*first) if one else formats.sequence(*first, formats.star(more))
        tag = formats.tag(form.section[0] + call["begin"], content, form.section[1])
        tags.append((form.trigger.replace("%s", name), tag))
    return tags
