"""The guarantees of a stream, as a state machine that is fed event by event.

Opening, text, finish reasons, usage on request, [DONE]; or an error with nothing after it. It knows
the stream's request, and raises OutOfOrder at the first broken rule.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
HEAD = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


class OutOfOrder(AssertionError):
    """A rule of the stream's order is broken."""


def rule(holds: bool, words: str) -> None:
    """Checks a rule; the text says what is wrong if it is broken."""
    if not holds:
        raise OutOfOrder(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The fields of a request that decide the order of its stream."""

    choices: int = 1
    include_usage: bool = False
    continuous_usage: bool = False
    obfuscation: bool = False
    logprobs: bool = False
    moderation: bool = False

    @classmethod
    def by(cls, body: Mapping[str, Any]) -> "Asked":
        """Reads a request's body."""
        options = body.get("stream_options") or {}
        logprobs = body.get("logprobs")
        return cls(
            choices=_prompts(body.get("prompt")) * (body.get("n") or 1),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(
                options.get("include_usage") and options.get("continuous_usage_stats")
            ),
            obfuscation=bool(options.get("include_obfuscation")),
            logprobs=logprobs is not None and logprobs is not False,
            moderation=body.get("moderation") is not None,
        )


def _prompts(prompt: Any) -> int:
    lists = isinstance(prompt, list) and not all(isinstance(each, int) for each in prompt)
    return len(prompt) if lists else 1


class _Choice:
    """One choice of either kind of stream: it begins, continues, and ends once."""

    def __init__(self) -> None:
        self.finished = False

    def feed(self, choice: Event) -> None:
        """Feeds the choice's part of a chunk."""
        rule(not self.finished, f"choice {choice['index']} goes on after its finish reason")
        self._feed(choice)
        reason = choice.get("finish_reason")
        rule(reason is None or bool(reason), "a finish reason is null until it is said, never ''")
        if reason is not None:
            self.finished = True
            self._finish(reason)

    def _feed(self, choice: Event) -> None:
        rule("text" in choice, "a chunk of completions has text, if empty")

    def _finish(self, reason: str) -> None:
        rule(reason != "tool_calls", "completions call no tools")


class _ChatChoice(_Choice):
    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._arguments: list[str] = []  # of each tool call
        self._function: str | None = None  # the call in the deprecated form

    def _feed(self, choice: Event) -> None:
        delta = choice["delta"]
        if self._begun:
            rule("role" not in delta, "the role comes again: clients concatenate it")
        else:
            rule(delta.get("role") == "assistant", "a choice begins without its role")
            rule(not delta.get("content", "x"), "the chunk with the role has content '' or null")
        self._begun = True
        said = delta.keys() & {"content", "reasoning_content", "tool_calls", "function_call"}
        rule(len(said) <= 1, f"a chunk says {said} at once, of which clients read one")
        same = delta.get("reasoning_content") == delta.get("reasoning")
        rule(same, "reasoning differs under its two names")
        for call in delta.get("tool_calls") or ():
            self._feed_call(call)
        if delta.get("function_call"):
            self._feed_function(delta["function_call"])

    def _feed_call(self, call: Event) -> None:
        rule(isinstance(call.get("index"), int), "a tool call's delta has no index")
        index: int = call["index"]
        function = call.get("function") or call.get("custom") or {}
        if index == len(self._arguments):
            rule(bool(call.get("id") and function.get("name")), "a tool call has no id or name")
            self._arguments.append("")
        else:
            rule(index in range(len(self._arguments)), "tool calls are not numbered from 0 on")
            again = {"id", "name"} & {*call, *function}
            rule(not again, f"a tool call's {again} comes again: clients concatenate it")
        self._arguments[index] += function.get("arguments") or ""

    def _feed_function(self, call: Event) -> None:
        if self._function is None:
            rule(bool(call.get("name")), "a function call has no name")
            self._function = call["name"]
        else:
            rule("name" not in call, "a function call's name comes again: clients concatenate it")

    def _finish(self, reason: str) -> None:
        if reason == "tool_calls":
            rule(bool(self._arguments), "the reason is tool_calls, and there is none")
        if reason == "function_call":
            rule(self._function is not None, "the reason is function_call, and there is none")


class StreamRules:
    """The machine: `feed` each event's data, `finish` when the connection ended normally."""

    def __init__(self, asked: Asked, *, chat: bool) -> None:
        self._asked = asked
        self._chat = chat
        self._choices: dict[int, _Choice] = {}
        self._head: Event | None = None
        self._completion_tokens = 0
        self._usage_seen = self._moderation_seen = False
        self.ended: str | None = None  # by what

    def feed(self, data: str) -> None:
        """Feeds the text after `data: `."""
        rule(self.ended is None, f"an event follows {self.ended}")
        if data == "[DONE]":
            self._done()
            return
        event = json.loads(data)
        if "error" in event:
            self._failed()
            return
        rule(not self._usage_seen, "a chunk follows the usage chunk")
        self._check_head(event)
        self._check_usage_field(event)
        if event["choices"]:
            self._feed_choices(event)
        elif "moderation" in event:
            self._feed_moderation()
        else:
            self._feed_usage(event)

    def finish(self) -> None:
        """Call it at the end of the connection."""
        rule(self.ended is not None, "the stream ends in silence: no [DONE], no error")

    def _done(self) -> None:
        everyone = set(range(self._asked.choices))
        finished = {index for index, choice in self._choices.items() if choice.finished}
        rule(finished == everyone, f"[DONE] before choices {everyone - finished} have ended")
        rule(self._usage_seen == self._asked.include_usage, "[DONE] without the usage asked for")
        rule(self._moderation_seen == self._asked.moderation, "[DONE] without the moderation")
        self.ended = "[DONE]"

    def _failed(self) -> None:
        finished = [choice.finished for choice in self._choices.values()]
        all_finished = len(finished) == self._asked.choices and all(finished)
        rule(not all_finished, "an error follows what looked like success")
        self.ended = "an error"

    def _check_head(self, event: Event) -> None:
        head = {name: event.get(name) for name in HEAD}
        self._head = self._head or head
        rule(head == self._head, f"chunks differ in {head} and {self._head}")
        wanted = "chat.completion.chunk" if self._chat else "text_completion"
        rule(head["object"] == wanted, f"the object is {head['object']}")

    def _check_usage_field(self, event: Event) -> None:
        if not self._asked.include_usage:
            rule("usage" not in event, "usage that nobody asked for")
            return
        rule("usage" in event, "a chunk has no usage field")
        usage = event["usage"]
        if event["choices"]:
            counted = self._asked.continuous_usage
            rule(counted or usage is None, "usage before the end")
            rule(not counted or usage is not None, "a chunk without the counts so far")
        if usage is not None:
            rule(usage["completion_tokens"] >= self._completion_tokens, "usage goes backwards")
            self._completion_tokens = usage["completion_tokens"]

    def _feed_choices(self, event: Event) -> None:
        padded = isinstance(event.get("obfuscation"), str)
        rule(padded or not self._asked.obfuscation, "a chunk is not padded, as was asked for")
        rule("obfuscation" not in event or self._asked.obfuscation, "padding unasked for")
        for choice in event["choices"]:
            self._feed_choice(choice)

    def _feed_choice(self, choice: Event) -> None:
        index = choice["index"]
        rule(index in range(self._asked.choices), f"nobody asked for choice {index}")
        if index not in self._choices:
            in_order = index == len(self._choices) or not self._chat
            rule(in_order, f"choice {index} appears before those below it")
            self._choices[index] = _ChatChoice() if self._chat else _Choice()
        if not self._asked.logprobs:
            rule(choice.get("logprobs") is None, "logprobs that nobody asked for")
        self._choices[index].feed(choice)

    def _feed_moderation(self) -> None:
        rule(self._asked.moderation, "moderation that nobody asked for")
        rule(not self._moderation_seen, "moderation twice")
        ended = all(choice.finished for choice in self._choices.values())
        rule(ended and len(self._choices) == self._asked.choices, "moderation before the end")
        self._moderation_seen = True

    def _feed_usage(self, event: Event) -> None:
        rule(self._moderation_seen or not self._asked.moderation, "usage before the moderation")
        rule(self._asked.include_usage, "a chunk without choices that nobody asked for")
        rule(event["usage"] is not None, "the last chunk has neither choices nor usage")
        ended = all(choice.finished for choice in self._choices.values())
        rule(ended and len(self._choices) == self._asked.choices, "usage before the end")
        self._usage_seen = True
