"""The sandbox of chat templates: Hugging Face's dialect and nothing else, within a budget."""

import json
import subprocess
import sys
import threading
from datetime import datetime
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting import template_calls, template_environment, template_limits
from openai_frontend.prompting.chat_template import ChatTemplate
from openai_frontend.prompting.template_environment import render, variables_of
from openai_frontend.prompting.template_limits import TemplateLimit
from tests.medium.prompting.template_bombs import MAX_CPU_S

MESSAGES = [
    {"role": "user", "content": "a<b>", "tree": [{"kids": [{"kids": []}]}]},
    {"role": "assistant", "content": "ü", "items": "own"},
    {"role": "user", "content": "c"},
]

DIALECT = {
    "generation": "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}",
    "generation in a loop": "{% for m in messages %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{{ loop.index }}{% endfor %}",
    "tojson": "{{ messages[1] | tojson }}{{ {'b': 1, 'a': [1]} | tojson(indent=2) }}",
    "tojson options": "{{ {'b': 1, 'a': 'ü'} | tojson(ensure_ascii=true, sort_keys=true,"
    " separators=(',', ':')) }}",
    "break and continue": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.length }}{{ loop.revindex }}"
    "{{ loop.last }}{{ (loop.previtem or m).role }}{{ (loop.nextitem or m).role }}"
    "{{ loop.cycle('x', 'y') }}{{ loop.changed(m.role) }}{% endfor %}",
    "loop over a filtered list": "{% for m in messages if m.role == 'user' %}{{ m.content }}"
    "{{ loop.length }}{% else %}none{% endfor %}",
    "loop over nothing": "{% for m in missing %}x{% else %}none{% endfor %}",
    "loop over a mapping": "{% for k, v in messages[0].items() %}{{ k }}{% endfor %}",
    "recursive loop": "{% for n in messages[0].tree recursive %}({{ loop(n.kids) }}){% endfor %}",
    "reversed": "{% for m in messages | reverse %}{{ m.content }}{% endfor %}{{ messages[::-1] }}",
    "namespace": "{% set ns = namespace(n=0, t='') %}{% for m in messages %}"
    "{% set ns.n = ns.n + 2 * 3 ** 2 %}{% set ns.t = ns.t ~ m.content + '!' %}{% endfor %}"
    "{{ ns.n }}{{ ns.t }}",
    "macro": "{% macro f(x, y='d') %}{{ x ~ y }}{{ caller() if caller }}{% endmacro %}"
    "{{ f(1) }}{% call f(2) %}body{% endcall %}",
    "set block": "{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ x }}",
    "concatenation": "{{ 1 ~ none ~ missing ~ [1] ~ true }}{{ [1] + [2] }}{{ 'ab' * 2 }}"
    "{{ 7 % 4 }}",
    "lookups": "{{ messages[1].items is callable }}{{ messages[1]['items'] }}"
    "{{ messages[0].nothing is defined }}",
    "methods": "{{ 'a-b'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'x%s' | format(1) }}"
    "{{ '{}'.format('y') }}{{ messages[0].get('role') }}",
    "filters": "{{ messages | map(attribute='role') | unique | join(',') }}{{ messages | length }}"
    "{{ messages | selectattr('role', 'eq', 'user') | list | length }}{{ 'x' | upper | trim }}",
    "sums": "{{ 'a' + messages[0].role + 'b' + messages[1].content + 'c' + 'd' + 'e' + 'f' + 'g'"
    " + 'h' + 'i' + (1 + 2 + 3.5) | string }}{{ [1] + messages[:1] + [2, 3] + ['x' + 'y'] }}"
    "{{ 'x' + ('y' | escape) + '<' }}{{ 1 + true }}",
    "members": "{% for m in messages %}{{ m.role }}{{ m['role'] }}{{ m.absent }}"
    "{{ m['absent'] is defined }}{{ m.content.upper() }}{% endfor %}{{ loop is defined }}"
    "{% set loops = {'first': 1} %}{{ loops.first }}{{ (missing or loops).first }}",
    "members of other values": "{% set ns = namespace(role='n') %}{{ ns.role }}{{ 'text'.role }}"
    "{{ 'text'['role'] }}{{ messages.role }}{{ messages['role'] }}{{ none.role is defined }}",
    "methods in a loop": "{% for m in messages %}{{ m.content.upper().strip('A').split('<')[-1] }}"
    "{% for k, v in m.items() %}{{ k.title() }}{{ (v | string | escape).lower() }}{% endfor %}"
    "{{ m.get('role', '').startswith('u') }}{{ '{x}'.format(x=k) }}{% endfor %}",
    "methods in a block": "{% block b scoped %}{{ messages[0].content.upper() }}{% endblock %}",
    "own variable in a macro": "{% set m = {'role': 'out'} %}{% macro f(m) %}{{ m.role + '!'"
    " }}{% endmacro %}{{ f(messages[0]) + m.role + f(m=m) }}",
    "macro in a loop": "{% macro f(x) %}<{{ x }}>{% endmacro %}{% for m in messages %}"
    "{{ f(m.role) }}{% for k in m %}{{ f(k) + loop.index | string }}{% endfor %}{% endfor %}",
    "long loop": "{% for m in messages * 40 %}{{ loop.index0 }}{{ m.role }}{{ loop.last }}"
    "{% endfor %}",
    "blocks are trimmed": "  {% if true %}\n    a\n  {% endif %}\n  b\n",
    "time": "{{ strftime_now('%Y-%m') }}",
}  # fmt: skip


@pytest.mark.parametrize("source", DIALECT.values(), ids=DIALECT.keys())
def test_renders_like_transformers(source: str) -> None:
    """Limits and the fast attribute lookup change no result."""

    # takes seconds, in every worker
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs, _ = render_jinja_template([MESSAGES], chat_template=source)
    assert theirs[0] == render(source, {"messages": MESSAGES})


REFUSED = {
    "text and number": "{{ 'a' + 'b' + 1 }}",
    "nothing": "{{ 'a' + missing + 'b' }}",
    "member of nothing": "{{ missing.role.name }}",
    "member of an absent member": "{{ messages[0].absent.name }}",
    "member of a member in brackets": "{{ messages[0]['absent']['name'] }}",
    "surplus argument": "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}",
    "unknown argument": "{% macro f(x) %}{{ x }}{% endmacro %}{% for m in messages %}{{ f(y=m) }}"
    "{% endfor %}",
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED.keys())
def test_refuses_like_jinja(source: str) -> None:
    """With the same words."""
    theirs = ImmutableSandboxedEnvironment().from_string(source)
    with pytest.raises((TemplateError, TypeError)) as expected:
        theirs.render(messages=MESSAGES)

    with pytest.raises(expected.type) as refused:
        render(source, {"messages": MESSAGES})
    assert str(refused.value) == str(expected.value)


def test_strftime_now_has_the_machines_date() -> None:
    """Some templates write the date into the prompt."""

    assert datetime.now().strftime("%Y") == render("{{ strftime_now('%Y') }}", {})


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'].__mro__ }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ raise_exception.__globals__.json }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{% set _ = messages[0].pop('role') %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_sandbox_escapes_are_refused(source: str) -> None:
    """An untrusted template reaches only its own variables."""

    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}])
    assert (refused.value.status, refused.value.param) == (400, "messages")


ENDLESS = {
    "loops": "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """The request is refused after its CPU time budget (1 s by default), and the thread is free."""

    monkeypatch.setattr(template_limits, "MAX_CPU_S", 0.05)
    with pytest.raises(TemplateLimit, match="took longer than"):
        render(source, {})


GROWING = {
    "text": "{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}",
    "product": "{{ 'a' * 10000000000 }}",
    "reversed product": "{{ 10000000000 * [1] }}",
    "power": "{{ 10 ** 1000000000 }}",
    "~": "ns.x ~ ns.x",
    "+": "ns.x + ns.x",
    "list": "ns.l + ns.l",
    "number": "ns.n * ns.n",
    "set": "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x %}"
    "{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
}  # fmt: skip
DOUBLING = (
    "{%% set ns = namespace(x='aa', l=[1, 1], n=2) %%}{%% for i in range(40) %%}"
    "{%% set ns.x = %s %%}{%% set ns.l = ns.x %%}{%% set ns.n = ns.x %%}{%% endfor %%}"
)


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING.keys())
def test_growing_value_is_refused(source: str) -> None:
    """Rendering stops before the value fills the memory."""

    with pytest.raises(TemplateLimit, match=r"longer than|larger than"):
        render(source if "{" in source else DOUBLING % source, {})


def test_text_at_the_limit_is_allowed() -> None:
    """One more character is refused."""

    content = "a" * template_limits.MAX_CHARACTERS
    assert render("{{ x }}", {"x": content}) == content
    with pytest.raises(TemplateLimit):
        render("{{ x }}!", {"x": content})


def test_each_rendering_has_its_own_budget() -> None:
    """Threads render concurrently, each with its own time."""

    steps: list[str] = []
    work = threading.Thread(
        target=lambda: steps.append(render("{% for i in [1] %}x{% endfor %}", {}))
    )
    assert render("{% for i in [1, 2] %}y{% endfor %}", {}) == "yy"
    work.start()
    work.join()
    assert steps == ["x"]


def test_raise_exception_has_the_templates_message() -> None:
    with pytest.raises(TemplateError, match="no such role"):
        render("{{ raise_exception('no such role') }}", {})


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("{{ documents }}", {"documents"}),
        ("{% set x = tools %}{% if y is defined %}{{ x }}{% endif %}", {"tools", "y"}),
        ("{% if not effort is defined %}{% set effort = 1 %}{% endif %}{{ effort }}", {"effort"}),
        ("{% macro f(m) %}{{ m }}{{ thinking }}{% endmacro %}{{ f(1) }}", {"thinking"}),
        ("{{ strftime_now('x') }}{{ raise_exception('y') }}{{ 'documents' }}", set()),
    ],
)
def test_variables_of_a_template(source: str, known: set[str]) -> None:
    """They are the undeclared ones, without the template's own and those of the environment."""

    assert known == variables_of(source)


_SCHEMA = {
    "type": "function",
    "function": {"name": "é<f>", "x": 1.0, "y": 10**15, "b": [True, {}], "text": "word " * 60},
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n": None},
        {"n": float("nan")},
        {"n": 2**70},
        {"n": 1e300},
        {"n": (1, 2)},
        {"n": "\ud800"},
        {7: 1},
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "arguments",
    ["", "indent=2", "sort_keys=true", "separators=(',', ':')", "separators=[',', ':']"],
)
def test_cached_json_equals_json(change: dict[Any, Any], arguments: str) -> None:
    """The first time and cached, also next to a value that differs only in types."""

    def expected(value: Any) -> str:
        options = {"indent=2": {"indent": 2}, "": {}, "sort_keys=true": {"sort_keys": True}}
        given: Any = options.get(arguments, {"separators": (",", ":")})
        return json.dumps(value, ensure_ascii=False, **given)

    if 7 in change and "sort" in arguments:
        return  # json itself cannot sort such keys
    others = {**_SCHEMA, "z": 1}, {**_SCHEMA, "z": 1.0}, {**_SCHEMA, "z": True}
    source = "{{ value | tojson(" + arguments + ") }}"
    for value in ({**_SCHEMA, **change}, *others) * 2:
        assert template_environment.render(source, {"value": value}) == expected(value)


@pytest.mark.slow
def test_no_method_or_filter_takes_much_memory_or_time() -> None:
    """Every public method and every filter with 2^31 as each argument, and combinations of them:
    64 MiB at most, and the CPU time of the limit, measured in a process of their own.
    """
    program = [sys.executable, "-m", "tests.medium.prompting.template_bombs"]
    result = subprocess.run(program, capture_output=True, check=True)
    measured = json.loads(result.stdout)

    assert len(measured) > 3000
    assert [each for each in measured if each[1] > 64 or each[2] > MAX_CPU_S + 0.4] == []


def test_every_filter_and_method_is_listed() -> None:
    """A new version of Jinja or Python may add some: each needs a check, or is refused by name."""
    theirs = ImmutableSandboxedEnvironment().filters.keys()
    methods = {name for name in dir(str) if not name.startswith("_")}

    assert theirs == template_calls.FILTERS.keys()
    # Formats have limits of their own; the others create bytes, or large tables.
    refused = {"encode", "format", "format_map", "maketrans", "translate"}
    assert methods - template_calls.METHODS[str].keys() == refused


@pytest.mark.parametrize(
    "source",
    [
        "{{ '\u00fc'.encode('utf-8') }}",
        "{{ {}.fromkeys([1], 2) }}",
        "{{ 7 .to_bytes(2, 'big') }}",
        "{{ ''.maketrans('a', 'b') }}",
    ],
)
def test_other_methods_are_refused_by_name(source: str) -> None:
    name = source.partition(".")[2].partition("(")[0]

    with pytest.raises(SecurityError, match=rf"a template cannot call \w+\.{name}"):
        render(source, {})


FORMATS = [
    "{{ '{} {a:>3}'.format('x', a=1) }}",
    "{{ '%s %5.1f' % ('x', 2) }}",
    "{{ '{x[role]}'.format_map({'x': messages[0]}) }}",
    "{{ ('<b>{}'|safe).format('&') }}",
    "{{ '{!r:>9}'.format('a') }}",
    "{{ '%(a)s' % {'a': 1} }}",
]


@pytest.mark.parametrize("source", FORMATS)
def test_formats_render_like_pythons(source: str) -> None:
    """As in Jinja's own sandbox."""
    theirs = ImmutableSandboxedEnvironment().from_string(source).render(messages=MESSAGES)

    assert theirs == render(source, {"messages": MESSAGES})


def test_a_conversation_may_grow_in_a_loop() -> None:
    """What a template replaces does not count: here it creates 200 MB in all."""
    messages = [{"role": "user", "content": f"{i} " + "a" * 20_000} for i in range(150)]
    source = (
        "{% set ns = namespace(text='', seen=[]) %}{% for m in messages %}"
        "{% set ns.text = ns.text + m.content %}{% set ns.seen = ns.seen + [m] %}{% endfor %}"
        "{{ ns.text }}{{ ns.seen | length }}"
    )
    expected = "".join(message["content"] for message in messages) + "150"

    assert expected == render(source, {"messages": messages})
