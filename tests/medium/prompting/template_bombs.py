"""Templates that try to take memory or time, and a program that measures what each one takes.

`python -m tests.medium.prompting.template_bombs` prints a JSON list: template, MiB of memory
that the process has gained until then, CPU seconds.
"""

import contextlib
import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openai_frontend.prompting import template_limits
from openai_frontend.prompting.template_environment import render

HUGE = "2147483648"
MAX_CPU_S = 0.1  # instead of 1: it must only be small beside what a template tries to take
_POSITIONAL = (
    HUGE, f"'a', {HUGE}", f"1, {HUGE}", f"'a', 'b', {HUGE}", f"{HUGE}, 'a'", f"{HUGE}, 1", "'a'",
)  # fmt: skip
_NAMED = (f"width={HUGE}", f"indent={HUGE}", f"precision={HUGE}")
_FILTERED = ("'a\tb\n'", "['a', 'b']", "{'a': 'b'}", "7", HUGE)
_METHODS_OF = {"'a\\tb\\n'": str, "['a', 'b']": list, "('a', 'b')": tuple, "{'a': 'b'}": dict,
               "7": int, "1.5": float, "range(9)": range}  # fmt: skip

_A = "('a' * 4000000)"
_LINES = "('a\\n' * 200000)"
_WIDE = "('\U0001f600' * 3000000)"
_NESTED = (
    "{% set ns = namespace(x=['a'], y=['a']) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
_MANY = "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}"

COMBINATIONS = (
    # one call that grows
    f"{{{{ {_A}.replace('a', 'b' * 4000) }}}}", f"{{{{ {_A}.split('a') | length }}}}",
    f"{{{{ {_A}.replace('', 'bbb') }}}}", "{{ ('\\n' * 4000000).splitlines() | length }}",
    "{{ ('a ' * 4000000).split() | length }}", f"{{{{ {_A} | list | length }}}}",
    f"{{{{ {_A}.join({_LINES} | list) }}}}", f"{{{{ {_LINES} | indent(4000) }}}}",
    f"{{{{ {_LINES} | indent('x' * 4000) }}}}", f"{{{{ {_A} | urlize }}}}",
    f"{{{{ {_LINES} | wordwrap(1) }}}}", f"{{{{ {_LINES} | wordcount }}}}",
    f"{{{{ {_A} | wordwrap(1, wrapstring='x' * 100) }}}}", f"{{{{ {_A} | pprint }}}}",
    "{{ ('<' * 8000000) | e }}", "{{ ('ΐ' * 8000000) | upper }}",
    "{{ ('%' * 4000000) | urlencode }}", "{{ ('<a>' * 2000000) | striptags }}",
    f"{{{{ {_A}.encode('utf-32') }}}}", f"{{{{ {_A}.encode('punycode') }}}}",
    f"{{{{ {_A}.translate({{97: 'b' * 4000}}) }}}}", f"{{{{ ''.maketrans({_A}, {_A}) | length }}}}",
    f"{{{{ {_A}.rfind('b' ~ ('a' * 2000000)) }}}}", f"{{{{ {_A}.rsplit('b' ~ ('a' * 99000)) }}}}",
    f"{{{{ {_A}.strip('b' * 4000000) }}}}", f"{{{{ {_A} | trim('b' * 4000000) }}}}",
    "{{ 7 .to_bytes(2147483648, 'big') }}", "{{ {}.fromkeys(range(90000), 1) | length }}",
    "{{ 1.5 | round(2147483648) }}", "{{ 15 | round(-2147483648) }}",
    "{{ [1] | batch(2147483648, 'x') | list | length }}", "{{ [1] | tojson(indent=2147483648) }}",
    "{{ [1] | slice(2147483648) | list | length }}", "{{ lipsum(n=90000) }}",
    "{{ strftime_now('%2000000000d') }}", f"{{{{ strftime_now({_A}) }}}}",
    "{{ ''|attr('ljust')(2147483648) }}", "{{ ('a'|safe).ljust(2147483648) }}",
    "{{ ['a'] | map('center', 2147483648) | list }}", "{{ dict(range(90000) | map('list')) }}",
    # formats
    "{{ '%2000000000d' % 1 }}", "{{ '%*d' % (2000000000, 1) }}", "{{ '%.2000000000f' % 1.5 }}",
    "{{ ('%9000d' * 90000) | format(*range(90000)) }}", "{{ '%(a)2000000000d' % {'a': 1} }}",
    f"{{{{ ('%(a)s' * 9000) % {{'a': {_A}}} }}}}", "{{ '{:2000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 2000000000) }}", "{{ '{0:>{1}}'.format('a', 2000000000) }}",
    f"{{{{ ('{{0}}' * 9000).format({_A}) }}}}", "{{ '{a:2000000000}'.format_map({'a': 1}) }}",
    f"{{{{ ('{{a}}' * 9000).format_map({{'a': {_A}}}) }}}}", "{{ '%2000000000s' | format('a') }}",
    f"{{{{ ('{{0!r}}' * 90).format({_A}) }}}}", "{{ '{:.2000000000f}'.format(1.5) }}",
    # values nested so that their text is exponential
    *(f"{_NESTED}{{{{ {use} }}}}" for use in (
        "ns.x", "ns.x | string", "ns.x | tojson", "ns.x | pprint", "ns.x == ns.y", "ns.x in [ns.y]",
        "ns.x ~ 'a'", "'%s' % (ns.x,)", "'{}'.format(ns.x)", "[ns.x, ns.y] | unique | list",
        "[ns.x, ns.y] | sort", "[ns.x].count(ns.y)", "[ns.x].index(ns.y)", "[ns.x] | join",
    )),
    "{% set ns = namespace(x=('a',)) %}{% for i in range(40) %}{% set ns.x = (ns.x, ns.x) %}"
    "{% endfor %}{{ {ns.x: 1} }}",
    "{% set ns = namespace(x={}) %}{% for i in range(40) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(9) %}{% set ns.x = [ns.x] * 1000 %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x] + [ns.x] %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = ns.x | batch(9, ns.x) | list %}{% endfor %}{{ ns.x }}",
    "{{ ([['a'] * 500] * 500) | sum(start=[]) | length }}",
    # many values, each within its limit
    _MANY + "{% set ns.x = ns.x + ['%s' % ('a' * 100000 ~ i)] %}{% endfor %}{{ ns.x | length }}",
    _MANY + f"{{{{ {_A}[i:] }}}}{{% endfor %}}",
    _MANY + f"{{% set ns.x = ns.x + [{_A}[i:]] %}}{{% endfor %}}",
    "{% macro m() %}" + _MANY + f"{{{{ {_A}[i:] }}}}{{% endfor %}}{{% endmacro %}}{{{{ m() }}}}",
    "".join(f"{{% set x{i} = {_A} ~ {i} %}}" for i in range(200)),
    "".join(f"{{% set x{i} = {_WIDE}.replace('b', '') ~ {i} %}}" for i in range(50)),
    "{% set c = cycler(" + ",".join(f"{_A}[{i}:]" for i in range(100)) + ") %}",
    "{% set ns = namespace() %}" + "".join(f"{{% set ns.x{i} = {_A} ~ {i} %}}" for i in range(100)),
    "{% set x = [" + ",".join(f"({_A} ~ {i})|length" for i in range(100)) + "] %}",
    "{{ range(90000) | map('string') | map('center', 8000000) | list | length }}",
    "{{ range(90000) | map('default', " + _A + ") | join | length }}",
    "{% for i in range(90000) %}{% set x %}{{ " + _A + " }}{% endset %}{% endfor %}",
    # much work without growth
    *(f"{{% set x = {_A} %}}{{% for i in range(90000) %}}{{{{ {use} }}}}{{% endfor %}}" for use in (
        "x.count('b')", "x.find('b')", "'b' in x", "x | trim | length", "x.upper() | length",
        "x.lower()[:1]", "x[::-1] | length", "(x ~ i) | length", "(x | reverse) | length",
        "x.isdigit()", "x.split('b') | length",
    )),
)  # fmt: skip


def calls() -> Iterator[str]:
    """Each public method and each filter, with the huge number in the place of each argument."""
    for value, kind in _METHODS_OF.items():
        for name in (each for each in dir(kind) if not each.startswith("_")):
            yield from (f"{{{{ ({value}).{name}({given}) }}}}" for given in _POSITIONAL)
    for name in sorted(ImmutableSandboxedEnvironment().filters):
        for value in _FILTERED:
            for given in (*_POSITIONAL, *_NAMED):
                yield f"{{{{ {value} | {name}({given}) | list }}}}"


def measure(source: str) -> tuple[float, float]:
    """MiB of the process at its peak until now, and seconds of CPU for this template."""
    begin = time.process_time()
    with contextlib.suppress(*_REFUSALS):
        render(source, {"messages": []})
    return _peak_mib(), time.process_time() - begin


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_REFUSALS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    AssertionError,
)  # fmt: skip


def main() -> None:
    template_limits.MAX_CPU_S = MAX_CPU_S
    before = _peak_mib()
    measured = [(each, *measure(each)) for each in itertools.chain(calls(), COMBINATIONS)]
    json.dump([(each, mib - before, cpu_s) for each, mib, cpu_s in measured], sys.stdout)


if __name__ == "__main__":
    main()
