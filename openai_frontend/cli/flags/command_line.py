"""Rewrites the words after `serve`: flags of other servers become our options, or problems."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openai_frontend.cli.flags import engine, llama_cpp, tritonserver, vllm
from openai_frontend.cli.flags.rules import Reading, Rule, Takes, switch
from openai_frontend.cli.flags.similar import similar
from openai_frontend.cli.init_repo.options import expanded, holds_weights
from openai_frontend.config.loader import options
from openai_frontend.config.restricted_groups import is_secret
from openai_frontend.config.triton_options import BOOLEANS

OwnOptions = Mapping[str, argparse.Action]

_NUMBER = frozenset("0123456789.")
_SECRET = {option.flag for option in options() if option.secret} - {"--engine-arg"}
_SECRET_WORDS = ("token", "api_key", "password")  # in the names of engine arguments


@dataclass(slots=True)
class Flag:
    """A flag with its values."""

    name: str
    written: str  # its own word
    values: list[str]
    rule: Rule | None  # None: an engine flag
    takes: Takes
    is_known: bool = True


@dataclass(slots=True)
class CommandLine:
    """The words for our parser, and what to report."""

    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # flags without effect
    problems: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)  # what the server accepts of all words
    obvious: bool = True  # whether the problems name the correction completely

    def report(self, program: str) -> str:
        """All problems, and the corrected command line unless it is obvious."""
        see = f"(see {program} --help)"
        if len(self.problems) == 1:
            text = f"{program}: {self.problems[0]} {see}\n"
        else:
            lines = "".join(f"  {problem}\n" for problem in self.problems)
            text = f"{program}: {len(self.problems)} options are refused {see}:\n{lines}"
        if self.obvious and len(self.problems) == 1:
            return text
        return f"{text}Use: {program} {shlex.join(self.corrected)}\n"


def rewrite(words: Sequence[str], own: OwnOptions) -> CommandLine:
    """`own`: the options of `serve` by their names."""
    flags: list[Flag] = []
    models: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            models += remaining
            break
        if _is_flag(word):
            flags.append(_flag(word, remaining, own))
        else:
            models.append(word)
    models = models or _named_model(flags) or _model_among(flags)
    result = CommandLine(words=list(models), corrected=_shown(models, words))
    for flag in sorted(flags, key=_order):
        if flag.rule is not None:
            _apply(result, flag, flag.rule)
    _apply_engine_flags(result, [flag for flag in flags if flag.rule is None], models)
    return result


def _order(flag: Flag) -> bool:
    """Defaults come first: our parser takes the last of two values."""
    return flag.rule is None or not flag.rule.is_default


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.issuperset(word[1:])


def _flag(word: str, remaining: list[str], own: OwnOptions) -> Flag:
    """Takes its values from the remaining words."""
    written, equals, inline = word.partition("=")
    # vLLM accepts underscores, except after the dot of a dotted flag
    key, dot, path = written.partition(".")
    name = key.replace("_", "-") + dot + path
    rule = _rule(name, own)
    takes = rule.takes if rule is not None else engine.takes(name)
    is_known = takes is not None
    if takes is None:
        rule = _unknown_rule(name, own)
        takes = rule.takes
    values = [inline] if equals else _values(takes, remaining)
    return Flag(name, word, values, rule, takes, is_known)


def _values(takes: Takes, words: list[str]) -> list[str]:
    """Removes the values of a flag from the words."""
    if takes == "switch":
        return [words.pop(0)] if words and words[0].lower() in BOOLEANS else []
    most = {"none": 0, "one": 1, "three": 3, "several": len(words)}[takes]
    if takes == "three":
        # All in one quoted word, as in NVIDIA's documentation; a secret may begin with a dash
        taken = words[: 1 if words and " " in words[0] else most]
        del words[: len(taken)]
        return taken
    before_flag = next((at for at, word in enumerate(words) if _is_flag(word)), len(words))
    taken = words[: min(most, before_flag)]
    del words[: len(taken)]
    return taken


def _named_model(flags: list[Flag]) -> list[str]:
    """The value of vLLM's flag `--model`."""
    named = next((flag for flag in flags if flag.name == "--model" and flag.values), None)
    if named is None:
        return []
    flags.remove(named)
    return named.values


def _model_among(flags: Sequence[Flag]) -> list[str]:
    """Without another word, MODEL is the last of the values after a flag that takes several."""
    for flag in reversed(flags):
        least = 2 if flag.is_known else 1
        if flag.takes == "several" and len(flag.values) >= least:
            return [flag.values.pop()]
    return []


def _rule(name: str, own: OwnOptions) -> Rule | None:
    """None for engine flags and unknown ones. The tables have some of our options too, whose
    values other servers write in another form.
    """
    for table in (vllm.FLAGS, tritonserver.FLAGS):
        if (rule := table.get(name)) is not None:
            return rule
    if (action := own.get(name)) is not None:
        return _own_rule(name, action)
    plain = "--" + name.removeprefix("--no-")
    positive = vllm.FLAGS.get(plain) or tritonserver.FLAGS.get(plain)
    if name.startswith("--no-") and positive is not None and positive.takes == "switch":
        return Rule("none", lambda _: positive.read(["false"]))
    return None if engine.takes(name) is not None else llama_cpp.FLAGS.get(name)


def _own_rule(name: str, action: argparse.Action) -> Rule:
    if isinstance(action, argparse.BooleanOptionalAction) and not name.startswith("--no-"):
        return switch(name)
    # `--help=GROUP` has a value only after an equals sign: MODEL may follow
    return Rule(
        "none" if action.nargs in (0, "?") else "one", lambda values: Reading((name, *values))
    )


def _unknown_rule(name: str, own: OwnOptions) -> Rule:
    guess = similar(name, own)
    if guess is None:
        return Rule("several", lambda _: Reading(problem=" "))
    meant = _own_rule(guess, own[guess])
    problem = f"did you mean {guess}?"
    return Rule(meant.takes, lambda values: Reading(meant.read(values).words, problem=problem))


def _apply(result: CommandLine, flag: Flag, rule: Rule) -> None:
    if rule.takes in ("one", "three") and not flag.values:
        count = f"{rule.takes} argument" + "s" * (rule.takes == "three")
        result.problems.append(f"{flag.name}: expected {count}")
        return
    reading = rule.read(flag.values)
    words = _words(reading)
    result.corrected += _masked(words)
    if reading.invalid:
        result.problems.append(f"{flag.name}: {reading.invalid}")
        result.obvious = False
        return
    if reading.problem:
        reason = reading.problem.strip()
        result.problems.append(f"unknown option {flag.name}" + (f"; {reason}" if reason else ""))
        result.obvious &= not words or reason.startswith("did you mean")
        return
    result.words += words
    if reading.note:
        result.notes.append(f"{flag.name} has no effect: {reading.note}")


def _words(reading: Reading) -> list[str]:
    """A value that starts with a dash shares the word of its option."""
    words = list(reading.words)
    if len(words) % 2 or not any(value.startswith("-") for value in words[1::2]):
        return words
    return [f"{name}={value}" for name, value in zip(words[::2], words[1::2], strict=True)]


def _masked(words: Sequence[str]) -> list[str]:
    """Without secret values."""
    shown = list(words)
    for at, word in enumerate(shown):
        name, equals, _ = word.partition("=")
        if is_secret(word) or (name in _SECRET and equals):  # of `--triton-option`
            shown[at] = f"{name}=..."
        elif name in _SECRET and at + 1 < len(shown):
            shown[at + 1] = "..."
    return shown


def _shown(models: Sequence[str], words: Sequence[str]) -> list[str]:
    """Without what may be a second API key: vLLM's flag takes several."""
    if not _SECRET.intersection(word.partition("=")[0] for word in words):
        return _masked(models)
    return [each if each == words[0] or "/" in each else "..." for each in models]


def _apply_engine_flags(result: CommandLine, flags: Sequence[Flag], models: Sequence[str]) -> None:
    grouped: dict[str, list[Flag]] = {}
    for flag in flags:
        grouped.setdefault(engine.argument(flag.name), []).append(flag)
    if _serves_repository(models, result.words):
        for argument, group in grouped.items():
            result.problems.append(
                f"{group[0].name}: only 'serve MODEL' takes engine flags; for a model of a "
                f"repository, set {argument} in its folder, in 1/model.json"
            )
        result.obvious &= not grouped
        return
    read_values = bool(grouped) and engine.is_installed() and not result.problems
    if read_values:
        sys.stderr.write("openai-frontend: importing vLLM, which reads its engine flags\n")
    for argument, group in grouped.items():
        if any(_lacks_value(flag) for flag in group):
            result.problems.append(f"{group[0].name}: expected one argument")
            continue
        words = [word for flag in group for word in _engine_words(flag)]
        secret = any(each in argument for each in _SECRET_WORDS)
        result.corrected += [group[0].name, "..."] if secret else words
        if read_values:
            _read_engine_flag(result, group[0].name, words)


def _lacks_value(flag: Flag) -> bool:
    """vLLM's parser accepts `--hf-token` alone."""
    return flag.takes in ("one", "several") and not flag.values and flag.name != "--hf-token"


def _serves_repository(models: Sequence[str], words: Sequence[str]) -> bool:
    if not models or "--model-repository" in words:
        return True
    path = expanded(models[0])
    return path.is_dir() and not holds_weights(path)


def _engine_words(flag: Flag) -> list[str]:
    """Words that vLLM's parser accepts: it has `--no-x` instead of `--x=false`."""
    if flag.takes == "switch" and flag.values:
        on = BOOLEANS.get(flag.values[0].lower())
        return [flag.written] if on is None else [flag.name if on else _negated(flag.name)]
    if flag.values and flag.values[0].startswith("-"):
        return [f"{flag.name}={flag.values[0]}", *flag.values[1:]]
    return [flag.name, *flag.values]


def _negated(name: str) -> str:
    return "--no-" + name.removeprefix("--")


def _read_engine_flag(result: CommandLine, name: str, words: Sequence[str]) -> None:
    try:
        arguments, left = engine.read(words)
    except ValueError as error:
        result.problems.append(f"{name}: {error}")
        return
    result.words += [*engine.as_options(arguments), *left]
