"""Regular expressions: which are read, and what they match once they are written for an engine."""

import contextlib
import itertools
import random
import re
import time

import pytest

from openai_frontend.engines.vllm.grammars.regex_determinism import (
    MAX_READINGS,
    check_readings,
    is_deterministic,
)
from openai_frontend.engines.vllm.grammars.regex_search import Search, whole_texts
from openai_frontend.engines.vllm.grammars.regex_syntax import parse
from openai_frontend.engines.vllm.grammars.regex_text import (
    for_llguidance,
    within_json_for_xgrammar,
)

TEXTS = ["".join(each) for n in range(5) for each in itertools.product("ab-", repeat=n)]


def python(pattern: str, search: Search = Search.ANYWHERE) -> list[re.Pattern[str]]:
    """The written expressions, in Python's syntax."""
    written = map(for_llguidance, whole_texts(pattern, search))
    return [
        re.compile(re.sub(r"\\x\{(\w+)\}", lambda code: rf"\U{int(code[1], 16):08x}", each))
        for each in written
    ]


def matching(pattern: str, texts: list[str], search: Search = Search.ANYWHERE) -> list[str]:
    whole = python(pattern, search)
    return [text for text in texts if all(each.fullmatch(text) for each in whole)]


SEARCHED = [
    "^a",
    "b$",
    "^a|b$",
    "^(a|b)$",
    "(^a)?b$",
    "^([a-b](-|$))+",
    "^$",
    "^(?:a$|b)",
    "$",
    "a",
    "(^|-)a(-|$)",
    "^(?=.*a)(?=.*b).{3,}$",
    "(^a|b)*$",
    "a|^b",
    "^a?^b",
    "(?:^a)?b",
    "^(?!b)a",
    "a*$b*",
    "^(?!a)b?[ab]{1,2}$",
    "^(?!-)",
    "^(?!a)(?!b)",
    r"\Aa|b\Z",
    "^(a|)+$",
    "^(a*)*b$",
    "^((a?b?){2})$",
    "^(?i:A)b",
    "(?s)a.b",
    "^a{0}b",
    "^a{2}?$",
    "^(|a|a{1,2})$",
    "^(?:)*a$",
    "[ab]-|^$",
    "^(?P<x>a)(?<y>b)?$",
    "^a(?#b)-$",
    r"^[^\W-]+$",
    r"^[\w-]$",
    "^(?!ab)[ab]*$",
    "^(?!a$|b-$)[ab-]+$",
    "^(?!-)(?!.*--)[ab-]*$",
    "^(?!.*(aa|bb)).+$",
    "^(?!.*a$)(?=.*a).+$",
    "^(?!(a|b){2,3}$).*$",
    "^(?!.{3})",
]


@pytest.mark.parametrize("pattern", SEARCHED)
def test_written_expression_matches_the_same_texts(pattern):
    """As Python's `re.search` finds, wherever anchors and lookaheads stand."""
    python_form = pattern.replace("(?<y>", "(?P<y>")

    assert matching(pattern, TEXTS) == [text for text in TEXTS if re.search(python_form, text)]


def test_no_dialect_finds_what_a_negative_lookahead_excludes():
    r"""`\d` is every digit in Python, `.` a line break in ECMA-262, and Python's `$` stands before
    the last one.
    """
    one = matching(r"^(?!\d{2}).*$", ["\u0661\u0661", "1\u0661", "a1", "\u0661a"])
    other = matching("^(?!.*a$)[^b]*$", ["a", "a\n", "a\r", "\ra", "ab", "a\n\n"])

    assert one == ["a1", "\u0661a"]
    assert other == ["a\r", "a\n\n"]


ATOMS = ("a", "b", "-", ".", "[ab]", "[^a]", r"\w", r"\s")
COUNTS = ("*", "+", "?", "{2}", "{1,3}", "{2,}")


def expression(random_: random.Random, depth: int) -> str:
    if depth == 0 or random_.random() < 0.3:
        return random_.choice(ATOMS)
    one, other = (expression(random_, depth - 1) for _ in range(2))
    return random_.choice([f"{one}{other}", f"({one}|{other})", f"({one}){random_.choice(COUNTS)}"])


def test_negative_lookaheads_exclude_the_texts_that_python_excludes():
    """Or are refused, because their automaton is too large."""
    random_ = random.Random(4)
    read = 0
    for _ in range(300):
        end = random_.choice(["", "$", "|-$"])
        pattern = f"^(?!{expression(random_, 3)}{end})[ab-]*$"
        with contextlib.suppress(ValueError):
            assert matching(pattern, TEXTS) == [text for text in TEXTS if re.search(pattern, text)]
            read += 1

    assert read > 200


def test_pattern_without_anchor_matches_the_whole_text():
    """Authors of `[a-b]{2}` mean two letters, not a text that has two letters in it."""
    assert matching("[ab]{2}", ["ab", "-ab"], Search.ANCHORED) == ["ab"]
    assert matching("^[ab]{2}", ["ab", "ab-", "-ab"], Search.ANCHORED) == ["ab", "ab-"]


def random_expression(chooser: random.Random, depth: int) -> str:
    kind = chooser.random()
    if depth == 0 or kind < 0.3:
        return chooser.choice(["a", "b", "-", "[ab]", "[^a]", "."])
    parts = [random_expression(chooser, depth - 1) for _ in range(chooser.randint(1, 3))]
    if kind < 0.55:
        return "".join(parts)
    if kind < 0.75:
        return f"({'|'.join([*parts, *chooser.choice([[], ['']])])})"
    sign = chooser.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
    return f"({parts[0]}){sign}"


def test_random_expressions_match_the_same_texts():
    """Simplification changes no expression."""
    chooser = random.Random(7)
    for _ in range(150):
        pattern = random_expression(chooser, 3)
        wanted = [text for text in TEXTS if re.fullmatch(pattern, text)]

        assert matching(pattern, TEXTS, Search.WHOLE) == wanted, pattern


ONE_CHARACTER = [
    (r"\x41", "A"),
    (r"\u0041", "A"),
    (r"\u{1F600}", "😀"),
    (r"\ud83d\ude00", "😀"),
    (r"\x{1F600}", "😀"),
    (r"\U0001f600", "😀"),
    (r"\0", "\0"),
    (r"\012", "\n"),
    (r"\141", "a"),
    (r"\cA", "\x01"),
    (r"\cJ", "\n"),
    (r"\t", "\t"),
    (r"\v", "\v"),
    (r"\f", "\f"),
    (r"[\b]", "\b"),
    (r"\/", "/"),
    (r"\-", "-"),
    (r"[\]]", "]"),
    (r"[\^]", "^"),
    ("{", "{"),
    ("]", "]"),
    ("}", "}"),
    (r"[\x30-\x39]", "0123456789"),
    ("[a-c-]", "-abc"),
    ("[-a]", "-a"),
    (r"[\w]", "Zz_9"),
    (r"[\d\s]", "0 \t"),
    (r"[^\S ]", "\n\t"),
    (r"[^\W\d]", "a_"),
    ("(?i)k", "kK"),
    (r"\p{Lu}", "AÄ"),
    (r"[\p{L}\p{N}_]", "aä語9_"),
    (r"\P{L}", "9 "),
    (r"[^\p{L}]", "9 "),
    (r"\p{Script=Greek}", "λ"),
    (r"\pL", "ä"),
    (r"[\u{1F600}-\u{1F64F}]", "😀"),
    ("[😀-😂]", "😁"),
    ("[[a]", "[a"),
    ("[a&&b]", "a&b"),
]


@pytest.mark.parametrize(("pattern", "text"), ONE_CHARACTER, ids=str)
def test_spellings_of_characters(pattern, text):
    assert matching(pattern, list(text)) == list(text)


DIALECTS = [
    (r"\d", "٣", False),
    (r"\D", "٣", False),
    (r"\w", "é", False),
    (r"\W", "é", False),
    (r"[^\w]", "é", False),
    (r"[^\D]", "3", True),
    (r"\s", "\ufeff", False),
    (r"\S", "\ufeff", False),
    (r"\s", "\xa0", True),
    (".", "\u2028", False),
    (".", "\r", False),
    (r"(?i)[^k]", "\u212a", False),
    (r"[\s\S]", "\u2028", True),
    (r"[^\s\S]|a", "a", True),
    (r"[\w\W]", "é", False),
]


@pytest.mark.parametrize(("pattern", "text", "taken"), DIALECTS, ids=str)
def test_only_what_every_dialect_matches_is_allowed(pattern, text, taken):
    """ECMA-262, Python and Rust read some classes differently."""
    assert bool(matching(pattern, [text])) is taken


REFUSED = [
    (r"\bfoo", "word boundary"),
    (r"\B", "word boundary"),
    ("(?<=a)b", "lookbehind"),
    ("(?<!a)b", "lookbehind"),
    (r"(a)\1", "backreference"),
    (r"(?<n>a)\k<n>", "backreference"),
    ("(?P<n>a)(?P=n)", "backreference"),
    ("a*+", "possessive"),
    ("a{2}+", "possessive"),
    ("(?>a)", "atomic"),
    ("(?m)^a", "flag 'm'"),
    ("(?x)a", "flag 'x'"),
    ("(a", "parenthesis"),
    ("a)", "parenthesis"),
    ("[a", "unterminated"),
    ("*a", "nothing to repeat"),
    ("a**", "repetition"),
    ("{2}", "nothing to repeat"),
    ("a{3,2}", "wrong order"),
    ("[z-a]", "wrong order"),
    ("a{,2}", "ambiguous"),
    (r"[a-\d]", "range"),
    ("[]", "empty"),
    ("[^]", "empty"),
    ("[]a]", "empty"),
    ("a\\", "backslash"),
    (r"\p{Foo}", "unknown"),
    (r"\xZ", "not supported"),
    (r"\u12", "not supported"),
    (r"\a", "not supported"),
    (r"\e", "not supported"),
    ("a(?=b)", "lookahead"),
    ("a(?!ab)", "lookahead"),
    ("^(?!.*.{30}x)a", "lookahead is too complex"),
    ("^(?!.*(a{3}|b{4}).*c)[abc]+$", "lookahead is too complex"),
    ("^(?!(.|a)*(b|.c){12})a", "lookahead is too complex"),
    ("^(?!.*)a$", "no text"),
    ("^*", "assertion"),
    (r"[^\s\S]", "no text"),
    ("a[^\\d\\D]", "no text"),
    ("a^b", "no text"),
    ("$a", "no text"),
    (r"\ud800", "no text"),
    ("(?(1)a)", "conditional"),
    (r"\Qa\E", "not supported"),
    ("(" * 200, "nested"),
    ("a{9999999999}", "too large"),
    ("(?P>n)", "not supported"),
    ("(?|a)", "not supported"),
    (r"\u{110000}", "too large"),
]


@pytest.mark.parametrize(("pattern", "reason"), REFUSED, ids=str)
def test_other_expressions_are_refused(pattern, reason):
    """Dialects disagree about them, or no grammar can express them, or nothing matches."""
    with pytest.raises(ValueError, match=reason):
        whole_texts(pattern)


IN_JSON = [
    ("a", "a"),
    ("[a-c]+", "[a-c]+"),
    ('"', r"(\\(\u{22}))"),
    (r"[\r\n]", r"(\\(n|r))"),
    (r"\x01", r"(\\(u0001))"),
    (r"[\x00-\x1fa]", r"(a|\\(b|f|n|r|t))"),
    ("(a+b)?", "|a+b"),
    ("x(a|b)?y", "x(|[a-b])y"),
]


@pytest.mark.parametrize(("pattern", "written"), IN_JSON, ids=str)
def test_characters_within_json_are_written_as_json_escapes_them(pattern, written):
    assert within_json_for_xgrammar(parse(pattern)) == written


DETERMINISTIC = [
    ("[a-z]+", True),
    (r"\d{3}-\d{4}", True),
    ("a*b", True),
    ("(ab|cd)*e", True),
    ("a?b?c", True),
    ("a*a", False),
    ("a|a{1,2}", False),
    ("a|ab|c", True),
    ("(ab|ac)", True),
    (r"[\w.]+\.com", False),
    ("(a|b*)*", False),
    ("GET|POST|PUT|PATCH", True),
    ("(a?){2}b", True),
    ("a{2,3}a", False),
    ("(a*)(b*)", True),
    ("(a*b?){1,2}", False),
]


@pytest.mark.parametrize(("pattern", "decided"), DETERMINISTIC, ids=str)
def test_whether_the_next_character_decides(pattern, decided):
    assert is_deterministic(parse(pattern)) is decided


READINGS = [
    ("(.{0,100},){0,100}", 10_100),
    ("([a-z]{0,90}[a-z ]{0,90}){0,20}", 3600),
    (".{0,300}x.{0,300}", 601),
    ("(.{0,500},)*", 501),
    ("(a{1,3}b?){1,500}", 2000),
    ("(.{0,100},){1,29}", 2929),
    # A separator, or only one repetition whose end is not known
    ("([A-Za-z]{1,20}[ -]){1,500}", 1),
    (r"[\w.-]{1,64}@([\w-]{1,63}\.){1,8}[a-z]{2,63}", 65),
    (".{0,5000}", 1),
    ("(a|b|ab){1,20}x", 80),
]


@pytest.mark.parametrize(("pattern", "readings"), READINGS, ids=str)
def test_expressions_of_many_readings_are_refused(pattern, readings):
    """llguidance would follow all of them, and fail within an answer."""
    if readings <= MAX_READINGS:
        assert whole_texts(pattern, Search.WHOLE)
        return
    with pytest.raises(ValueError, match=f"one text has up to {readings} readings"):
        whole_texts(pattern, Search.WHOLE)


@pytest.mark.parametrize("pattern", ["a" * 3000, "a?" * 300, "(a?b|c)" * 500], ids=len)
def test_long_expressions_are_examined_fast(pattern):
    tree = parse(pattern)
    begun = time.process_time()
    check_readings(tree)
    is_deterministic(tree)
    assert time.process_time() - begun < 2
