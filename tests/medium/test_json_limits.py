import json
import time
from collections.abc import Generator

import pytest

from openai_frontend import json_limits
from openai_frontend.json_limits import TooManyParts, check_json_size
from tests.cpu_time import budget


def fields(count: int) -> bytes:
    return b"{" + b",".join(b'"k%06d":1' % number for number in range(count)) + b"}"


def nested(inner: bytes) -> bytes:
    return b'{"x":' + inner + b"}"


def messages(count: int) -> bytes:
    return nested(b"[" + b",".join([b'{"role":"user","content":"hi"}'] * count) + b"]")


def alternating(levels: int) -> bytes:
    """From the inside: objects of one to four members, then an array, and so on."""
    text = b"1"
    for level in range(levels):
        members = level % 5 + 1
        before = b"".join(b'"%d":1,' % each for each in range(members - 1))
        text = b"[" + text + b"]" if members == 5 else b"{" + before + b'"x":' + text + b"}"
    return text


HARMLESS = {
    "fields": fields(json_limits.MAX_FIELDS),
    "depth": nested(b"[" * 63 + b"]" * 63),
    "depth of all kinds": alternating(64),
    "deep text": nested(b'"' + b"[" * 1000 + b'"'),
    "deep text in windows of its own": nested(b'"' + b"[" * 300_000 + b'",' + b"[]," * 30 + b"1"),
    "text of fields": nested(json.dumps(fields(1000).decode()).encode()),
    "text of backslashes": nested(b'"' + rb"\\\"[" * 1000 + b'"'),
    "siblings": nested(b"[" + b",".join([b"[[1]]"] * 1000) + b"]"),
    "messages": messages(2048),
    "nested fields": nested(fields(5000)),
    "tokens": nested(b"[" + b"1," * 1_000_000 + b"1]"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_normal_requests_pass(name):
    """Characters inside strings are not counted as structure."""
    check_json_size(HARMLESS[name])


FLOODS = {
    "fields": (fields(json_limits.MAX_FIELDS + 1), "256 parameters"),
    "many fields": (fields(800_000), "256 parameters"),
    "spaced fields": (fields(300).replace(b":", b" \n : "), "256 parameters"),
    "depth": (nested(b"[" * 64 + b"]" * 64), "64 levels of nesting"),
    "deep objects": (b'{"x":' * 65 + b"1" + b"}" * 65, "64 levels of nesting"),
    "depth of all kinds": (alternating(65), "64 levels of nesting"),
    "unclosed": (b"[" * 100_000, "64 levels of nesting"),
    "late depth": (nested(b'["' + b"x" * 100_000 + b'",' + b"[" * 64), "64 levels of nesting"),
    "escaped quotes": (nested(b'["\\"",' + b"[" * 64), "64 levels of nesting"),
    "nested fields": (nested(fields(70_000)), "65536 strings"),
    "messages": (messages(20_000), "65536 strings"),
    "numbers": (nested(b"[" + b"1," * 1_100_000 + b"1]"), "1048576 values"),
    "empty arrays": (nested(b"[" + b"[]," * 150_000 + b"1]"), "131072 arrays and objects"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_too_many_parts_are_rejected(name):
    """The error names the limit."""
    body, limit = FLOODS[name]

    with pytest.raises(TooManyParts, match=f"^more than {limit}$"):
        check_json_size(body)


@pytest.mark.parametrize("name", ["many fields", "unclosed", "deep objects"])
def test_rejection_is_fast(name):
    """If the first part exceeds a limit, the check takes less than 5 ms for any length."""
    body, _ = FLOODS[name]

    assert best_of_five(body) < budget(0.005)


def best_of_five(body: bytes) -> float:
    took_s = []
    for _ in range(5):
        started = time.process_time()
        with pytest.raises(TooManyParts):
            check_json_size(body)
        took_s.append(time.process_time() - started)
    return min(took_s)


STRINGS = (rb"\\\"[{", rb"x\\", rb"\"", b"", b"[[]]", rb"\\\\\"")


@pytest.mark.parametrize("window", [1, 2, 3, 5, 7, 64])
def test_window_boundaries_do_not_matter(monkeypatch, window):
    """Strings and structure are told apart wherever a body is cut."""
    body = nested(b"[" + b",".join(b'{"k":["%s"]}' % each for each in STRINGS * 50) + b"]")
    whole = b"".join(outside for outside, _ in json_limits._windows(body))
    quotes = sum(count for _, count in json_limits._windows(body))
    monkeypatch.setattr(json_limits, "_WINDOW", window)

    cut = list(json_limits._windows(body))

    assert (whole, quotes) == (b"".join(outside for outside, _ in cut), sum(q for _, q in cut))


@pytest.mark.parametrize("text", [messages(2048), messages(2048)[5:-1]], ids=["body", "member"])
def test_messages_need_no_loop(text):
    """Nothing of 2,048 messages is left to count level by level, in a body or on their own."""
    ((outside, _),) = json_limits._windows(text)
    signs = outside.translate(None, json_limits._NO_STRUCTURE)

    removal = json_limits._without_innermost(signs)
    with pytest.raises(StopIteration) as ended:
        next(removal)

    assert (len(signs) > 8000, ended.value.value[0]) == (True, b"")


STEPS = {
    "escaped text": nested(json.dumps('Hello "there"\n über ' * 80_000).encode()),
    "backslashes": nested(b'"' + b"\\" * 4_000_000 + b'"'),
    "arrays": nested(b'["' + b"x" * 200_000 + b'"' + b',{"a":[[[[1]]]]}' * 20_000 + b"]"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_short(name):
    """Whatever a long body has."""
    assert min(longest_step(STEPS[name]) for _ in range(5)) < budget(0.003)


def longest_step(body: bytes) -> float:
    steps, longest, last = json_limits.size_checks(body), 0.0, time.process_time()
    for _ in steps:
        longest, last = max(longest, time.process_time() - last), time.process_time()
    return longest


LONG_INTEGERS = [b"9" * 20, b"-9223372036854775809", b"18446744073709551616", b"1" * 400]
OTHER_NUMBERS = [
    *(b"1" * 19, b"-999999999999999999", b"0.00012345678901234567", b"-0.000" + b"1" * 17, b"1e20"),
    b'"12345678901234567890 and more"',
]


@pytest.mark.parametrize("at", [0, 1, 65_500, 65_510, 65_520, 65_530, 65_536, 200_000])
@pytest.mark.parametrize(
    ("number", "is_long"),
    [*((each, True) for each in LONG_INTEGERS), *((each, False) for each in OTHER_NUMBERS)],
    ids=repr,
)
def test_long_integers_are_found_between_other_values(number, is_long, at):
    """Also at the ends of the windows, and not within the strings of a body that has windows."""
    body = nested(b"[1," + b" " * at + number + b"," + b" " * 70_000 + b"2]")

    assert is_long == result(json_limits.size_checks(body))


def result(steps: Generator[None, None, bool]) -> bool:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
