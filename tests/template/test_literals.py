"""What a template's source says that it compares words with."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("jinja2")

from pipegen.template.literals import ComparedText, compared_beyond, compared_with


@pytest.mark.parametrize(
    ("source", "alone", "parts"),
    [
        ("{{ 'written' ~ m.content }}{{ m['content'] }}{{ m.get('name') }}", set(), set()),
        ("{% if m.role == 'user' %}{% endif %}", {"user"}, set()),
        (
            "{% if m.get('role') | lower != 'user' or m.role.strip() == 'tool' %}{% endif %}",
            {"user", "tool"},
            set(),
        ),
        ("{% if m.content[0] == '/' %}{% endif %}", set(), {"/"}),
        ("{% if m.content[2:] == 'x' or (m.a ~ m.b) == 'y' %}{% endif %}", set(), {"x", "y"}),
        ("{% if 'x' in m.content or m.content not in ('y', 'z') %}{% endif %}", {"y", "z"}, {"x"}),
        ("{{ m.content.split('</s>')[0] | replace('a', 'b') }}", set(), {"</s>", "a", "b"}),
        (
            "{{ ms | selectattr('role', 'equalto', 'user') | map('upper') | join(', ') }}",
            set(),
            {"user"},
        ),
        ("{% if m.content is eq('x') %}{% endif %}{{ m.content is string }}", set(), {"x"}),
        ("{{ {'on': 'y'}[m.content] }}", {"on"}, set()),
        ("{% set a, b = 'x', 'y' %}{% if a in m.content %}{% endif %}", set(), {"x", "y"}),
        (
            (
                "{% set ns = namespace(a='x') %}{% set ns.a = ns.a ~ 'y' %}{% if ns.a == m.content"
                " %}{% endif %}"
            ),
            set(),
            {"x", "y"},
        ),
        (
            "{% for a in ['x', 'y'] %}{% if a == m.content %}{% endif %}{% endfor %}",
            set(),
            {"x", "y"},
        ),
        ("{% for a in flags %}{% if a == 'x' %}{% endif %}{% endfor %}", {"x"}, set()),
        (
            "{% macro f(a) %}{% if a == 'x' %}{% endif %}{% endmacro %}{{ f(m.content) }}",
            {"x"},
            set(),
        ),
        (
            "{% macro f(a) %}{% if a == 'x' %}{% endif %}{% endmacro %}{{ f(m.content[1:]) }}",
            set(),
            {"x"},
        ),
        ("{% set a = a %}{% if a == 'x' or f(a) == 'y' %}{% endif %}", {"x"}, {"y"}),
        ("{% filter replace('x', '') %}{% endfilter %}", set(), {"x"}),
        (
            (
                "{% generation %}{% if m.b == ('p' if m.a else 'q') %}{% break %}{% endif %}{%"
                " endgeneration %}"
            ),
            {"p", "q"},
            set(),
        ),
        ("{% if m.content == ' \n' or 3 == m.n %}{% endif %}", set(), set()),
        ("{% if %}", set(), set()),
    ],
)
def test_comparisons_are_with_whole_entries_or_with_parts_of_them(
    source: str, alone: set[str], parts: set[str]
) -> None:
    assert compared_with(source) == ComparedText(frozenset(alone), frozenset(parts))


def test_text_that_holds_some_characters_is_left_out() -> None:
    assert compared_beyond(
        "{{ m.content.split('<s>') }}{% if 'x' in m.content %}{% endif %}", frozenset("<")
    ) == ComparedText(parts=frozenset({"x"}))


def test_nothing_is_found_in_words_where_the_template_compares_with_nothing() -> None:
    assert ComparedText().found_in(["words"]) == frozenset()
    assert ComparedText(alone=frozenset({"x"})).found_in(["x" * 100, "y"]) == frozenset()


def test_without_jinja_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert compared_with("{% if m.content == 'without jinja' %}{% endif %}") == ComparedText()
