"""Renders expressions with Jinja2, set up as transformers sets it up, and writes `../golden/jinja.json`.

Chat templates are written for Jinja2 and Python's types. Each expression here shows something in which another
implementation may differ. Needs jinja2 3.1.6 alone.
"""

import json
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent

# The variables of the expressions.
VARIABLES = {
    "text": "Hello, World",
    "empty": "",
    "nothing": None,
    "yes": True,
    "whole": 7,
    "part": 2.5,
    "items": ["a", 1, 2.0, None, True, {"k": "v"}, ["x"]],
    "names": [{"name": "one", "n": {"m": 1}}, {"name": "two", "n": {"m": 2}}],
    "object": {"a": 1, "b": [1, "x"], "c": {"d": None}},
    "numbers": [3, 1, 2],
    "quotes": ["it's", 'say "hi"', "both ' and \"", "line\n", "tab\t\\", "ü€😀", "\u0007"],
    "floats": [0.1, 1.0, 100.0, 1e15, 1e16, 1.5e300, 1e-4, 1e-5, 123456789.123, -0.0],
}

TYPES = ["nothing", "missing", "empty", "text", "yes", "whole", "part", "items", "object", "{}", "[]", "'a'", "range(3)", "(1, 2)"]
TESTS = ["iterable", "sequence", "mapping", "string", "number", "integer", "float", "boolean", "none", "defined", "callable", "true", "false"]

EXPRESSIONS = [f"{value} is {test}" for value in TYPES for test in TESTS]
EXPRESSIONS += ["raise_exception is callable", "namespace is callable", "text.upper is callable"]
EXPRESSIONS += TYPES
EXPRESSIONS += [f"'' ~ {value}" for value in TYPES] + [f"{value} | string" for value in TYPES]
EXPRESSIONS += ["quotes", "floats", "names", "items ~ object", "items | join(', ')", "floats | join(' ')", "[1, [2.0, 'x'], {'a': none}]"]
EXPRESSIONS += [f"floats[{i}]" for i in range(10)] + [f"quotes[{i}] | tojson" for i in range(7)]
EXPRESSIONS += ["floats | tojson", "items | tojson", "object | tojson(indent=2)", "names | tojson(sort_keys=true)", "{'a': 1e16} | tojson"]
EXPRESSIONS += ["1e400 | tojson", "1 / 3", "7 / 2", "4 / 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "2 ** 10", "2 ** 0.5", "1e3", "10.0 * 2"]
EXPRESSIONS += [f"{x} | round" for x in ["0.5", "1.5", "2.5", "-0.5", "2.675", "7", "1e20"]]
EXPRESSIONS += ["2.675 | round(2)", "42.55 | round(1, 'floor')", "42.45 | round(0, 'ceil')", "1234 | round(-2)"]
EXPRESSIONS += [f"{x} | int" for x in ["'3'", "'3.7'", "'x'", "''", "none", "2.9", "-2.9", "true", "' 42 '", "missing", "[]"]]
EXPRESSIONS += ["'x' | int(5)", "'ff' | int(0, 16)", "'0x1f' | int(base=16)", "'x' | int(default=-1)"]
EXPRESSIONS += [f"{x} | float" for x in ["'3'", "'3.7'", "'x'", "''", "none", "2", "true", "'1e3'"]] + ["'x' | float(1.5)"]
EXPRESSIONS += ["text | truncate(5)", "text | truncate(9, true)", "text | truncate(9, true, '..', 0)", "text | truncate(12)", "'foo bar baz qux' | truncate(9)", "'foo bar baz qux' | truncate(11, False, '...', 0)", "'foo bar baz qux' | truncate(length=9, killwords=true)"]
EXPRESSIONS += ["'a b&c/ü?' | urlencode", "object | urlencode", "[('a', 'b c'), ('d', 1)] | urlencode"]
EXPRESSIONS += ["names | join(', ', attribute='name')", "names | join(attribute='name')", "numbers | join('-')", "text | join('.')", "names | map(attribute='n.m') | join('+')"]
EXPRESSIONS += ["'%s' % 'a'", "'%s and %d' % ('a', 3)", "'%.2f' % part", "'%05d|%-5s|%5s|%x|%%' % (42, 'ab', 'cd', 255)", "'%r' % 'a'", "'%(a)s' % {'a': 1}", "'%s' % items", "('%s' % whole) ~ '!'", "'%s' | format(nothing)", "'%s %s' | format('a', 1.0)", "'{} {}'.format('a', 1)", "'{0} {x}'.format('a', x=2)"]
EXPRESSIONS += [f"text.{call}" for call in [
    "rsplit(', ')", "rsplit('l', 1)", "split('l', 1)", "rsplit()", "partition(', ')", "rpartition('o')", "partition('z')",
    "removeprefix('He')", "removesuffix('ld')", "index('W')", "find('z')", "rindex('o')", "zfill(15)", "ljust(14, '.')", "rjust(14)",
    "center(16, '*')", "swapcase()", "casefold()", "title()", "capitalize()", "count('l')", "replace('l', 'L', 2)", "startswith(('He', 'x'))",
    "endswith('ld')", "isalpha()", "isdigit()", "islower()", "isspace()", "splitlines()", "expandtabs()", "upper()", "lstrip('He')", "strip('Hd')",
    "encode('utf-8') | length", "find('o', 5)", "startswith('W', 7)"]]
EXPRESSIONS += ["'a\\nb\\r\\nc'.splitlines()", "' a  b '.split()", "' a  b '.split(' ')", "'1,2'.split(',') | map('int') | list", "'ß'.upper()", "'x' * 3", "[1] * 2", "[1] + [2]", "'a' < 'b'"]
EXPRESSIONS += ["object.items()", "object.keys() | list", "object.values() | list", "object.get('a')", "object.get('z')", "object.get('z', 3)", "object | items | list", "object | dictsort", "object | list", "object | length", "object['a']", "object.z is defined", "'a' in object", "1 in numbers", "numbers.index(2)", "numbers.count(1)", "object.copy()"]
EXPRESSIONS += ["numbers | sort", "numbers | sort(reverse=true)", "names | sort(attribute='name') | map(attribute='name') | list", "numbers | min", "numbers | max", "numbers | sum", "numbers | first", "numbers | last", "numbers | reverse | list", "text | reverse", "numbers | unique | list", "numbers | batch(2) | list", "numbers | slice(2) | list", "names | selectattr('name', 'equalto', 'one') | list", "names | rejectattr('name', 'in', ['one']) | list", "numbers | select('odd') | list", "numbers | reject('gt', 1) | list", "names | groupby('name') | list | length", "text | list | length"]
EXPRESSIONS += ["text[1:4]", "text[-3:]", "text[::-1]", "text[::2]", "numbers[::-1]", "numbers[:-1]", "numbers[5:]", "text[0]", "numbers[-1]", "missing | default('d')", "empty | default('d')", "empty | default('d', true)", "nothing | default('d')", "missing | length", "missing ~ 'x'", "missing == missing", "nothing is sameas none"]
EXPRESSIONS += ["text | capitalize", "text | title", "'hello wORLD foo-bar' | title", "text | upper", "text | wordcount", "text | center(20)", "'a\\nb' | indent", "'a\\nb\\n\\nc' | indent(2, true)", "'a\\nb' | indent('> ')", "' a ' | trim", "'xax' | trim('x')", "'<a>' | escape", "'<a href>b</a>' | striptags", "text | replace('l', 'L')", "text | replace('l', 'L', 1)", "'abc' | first", "text | length", "part | abs", "-3 | abs", "'a' | string | length", "1234567 | filesizeformat", "'a b c d' | wordwrap(3)", "object | pprint", "items | tojson | length", "true | tojson", "dict(a=1)", "dict(a=1, **object) | length", "namespace(a=1).a", "cycler('a', 'b').next()", "joiner(', ')() ~ 'x'", "range(0, 10, 3) | list", "range(5)[1:3] | list", "lipsum is defined"]
EXPRESSIONS += ["1 if missing", "1 if nothing else 2", "not missing", "missing and 1", "nothing or 'x'", "0 or ''", "1 and 'a'", "yes and whole", "1 == 1.0", "1 == true", "'1' == 1", "none == false", "[1] == [1.0]", "{'a': 1} == {'a': 1}", "(1, 2) == [1, 2]", "3 > 2 > 1", "1 < 3 < 2", "'a' not in 'abc'", "not 1 in [1]", "-2 ** 2", "2 * 3 ~ 'x'", "1 + 2 ~ 3"]


def raise_exception(message):
    raise ValueError(message)


def environment():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    environment.globals["raise_exception"] = raise_exception
    return environment


def main():
    jinja, rows = environment(), []
    for expression in EXPRESSIONS:
        try:
            text = jinja.from_string("{{ " + expression + " }}").render(**VARIABLES)
        except Exception:
            text = None
        rows.append([expression, text])
    written = {"variables": VARIABLES, "expressions": rows}
    (HERE / "../golden/jinja.json").write_text(json.dumps(written, ensure_ascii=False, indent=0) + "\n")


main()
