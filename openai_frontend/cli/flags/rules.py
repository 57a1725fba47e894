"""The meaning of another server's flags here: the kinds of rows in the tables of flags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from openai_frontend.config.triton_options import BOOLEANS

# How many values a flag takes: a switch may have one of `BOOLEANS`
Takes = Literal["none", "switch", "one", "three", "several"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of a flag and its values here."""

    words: tuple[str, ...] = ()  # for our command line
    note: str = ""  # why the flag has no effect
    problem: str = ""  # why it is refused; `words` are what to use instead
    invalid: str = ""  # why its value is refused


@dataclass(frozen=True, slots=True)
class Rule:
    takes: Takes
    read: Callable[[Sequence[str]], Reading]  # of the flag's values
    is_default: bool = False  # other flags override its words, before and after it


def renamed(option: str, convert: Callable[[str], str] = str) -> Rule:
    """Our option means the same; `convert` may raise ValueError."""

    def read(values: Sequence[str]) -> Reading:
        try:
            return Reading((option, convert(values[0])))
        except ValueError as error:
            return Reading(invalid=str(error))

    return Rule("one", read)


def repeated(option: str, split: Callable[[str], Sequence[str]] = lambda text: [text]) -> Rule:
    """Our option means the same and is repeated for each value."""

    def read(values: Sequence[str]) -> Reading:
        try:
            items = [item for value in values for item in split(value)]
        except ValueError as error:
            return Reading(invalid=str(error))
        return Reading(tuple(word for item in items for word in (option, item)))

    return Rule("several", read)


def switch(option: str) -> Rule:
    """Our switch means the same."""
    off = "--no-" + option.removeprefix("--")
    return _by_boolean(Reading((option,)), Reading((off,)))


def only_off(reason: str) -> Rule:
    """The server behaves as if the switch were off."""
    return _by_boolean(Reading(problem=reason), Reading())


def only_on(reason: str) -> Rule:
    """The server behaves as if the switch were on."""
    return _by_boolean(Reading(), Reading(problem=reason))


def _by_boolean(on: Reading, off: Reading) -> Rule:
    def read(values: Sequence[str]) -> Reading:
        text = values[0].lower() if values else "true"
        if text not in BOOLEANS:
            return Reading(invalid=f"'{values[0]}' is not true or false")
        return on if BOOLEANS[text] else off

    return Rule("switch", read)


def only(value: str, reason: str) -> Rule:
    """The server behaves as with this value."""
    return one_of(value, reason=reason)


def one_of(*accepted: str, reason: str) -> Rule:
    """The server behaves as with each of these values."""

    def read(values: Sequence[str]) -> Reading:
        return Reading() if values[0] in accepted else Reading(problem=reason)

    return Rule("one", read)


def not_needed(reason: str, takes: Takes = "switch") -> Rule:
    """The server always does what the flag asks for."""
    return Rule(takes, lambda values: Reading(note=reason))


def refused(reason: str, takes: Takes = "one") -> Rule:
    return Rule(takes, lambda values: Reading(problem=reason))


def instead(rule: Rule, advice: str = "") -> Rule:
    """Refuses the flag with what it would be here, since it is not exactly the same."""

    def read(values: Sequence[str]) -> Reading:
        reading = rule.read(values)
        if reading.problem or reading.invalid or not reading.words:
            return reading
        use = " ".join(reading.words)
        return replace(reading, problem=f"use {use}" + (f"; {advice}" if advice else ""))

    return Rule(rule.takes, read)
