"""argparse whose refusals are one line, which says what may have been meant."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

# Options with values that no message may show: a word that is left over may be one of them
_SECRET = frozenset({"--api-key"})


class CommandLineParser(argparse.ArgumentParser):
    """Its commands are of this class too, so that each refuses what is not its own."""

    # What to do instead of an option that other programs have
    advise: Callable[[str], str | None] | None = None

    def error(self, message: str) -> NoReturn:
        """Ends the process with code 2."""
        reason = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {reason} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]  # a namespace of our own is never given
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Nothing is left over: what is not known is refused by the command that was given it."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest[0], args or ()))
        return known, rest

    def _unknown(self, word: str, args: Sequence[str]) -> str:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if _SECRET.intersection(each.partition("=")[0] for each in args):
                return "one argument too many; repeat --api-key for each key"
            return f"one argument too many: '{word}'"
        if self.advise is not None and (advice := self.advise(name)) is not None:
            return f"there is no option {name}; {advice}"
        return f"there is no option {name}{_guess(name, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            if guess := _guess(str(value), known):
                raise argparse.ArgumentError(action, f"there is no '{value}'{guess}")
            raise argparse.ArgumentError(action, f"'{value}' is not one of {', '.join(known)}")


def _guess(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
