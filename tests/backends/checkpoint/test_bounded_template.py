"""Chat templates that a request brings: off unless allowed, bounded in steps and size, and rendered as transformers would."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import CHATML, INSTRUCT, PARTS_ONLY, chatml_tokenizer

import pipegen as pg
from pipegen.backends.checkpoint.bounded_template import SIZE, SOURCE, TemplateTooLarge
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.testing.fake import FakeEngine

GROWING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
NESTED = GROWING.replace("STEP", "(ns.x, ns.x)")
MUCH = {
    "repeated text": "{{ 'x' * 10**13 }}",
    "repeated list": "{{ [1] * 10**10 }}",
    "list of lists": "{{ [[1] * 1000] * 100000 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "product": "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = ns.x * 9 %}{% endfor %}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with a condition": "{% for a in range(99999) %}{% for b in range(99999) if a == b %}{% endfor %}{% endfor %}",
    "loops that write": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "loops that write into a block": "{% set t %}{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "joined by ~": GROWING.replace("STEP", "ns.x ~ ns.x"),
    "joined by +": GROWING.replace("STEP", "ns.x + ns.x"),
    "joined by %": GROWING.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
    "joined by format": GROWING.replace("STEP", "'{0}{0}'.format(ns.x)"),
    "joined by the filter format": GROWING.replace("STEP", "'%s%s'|format(ns.x, ns.x)"),
    "joined by join": GROWING.replace("STEP", "ns.x.join([ns.x] * 9)"),
    "joined by the filter join": GROWING.replace("STEP", "([ns.x] * 9)|join(ns.x)"),
    "joined by replace": GROWING.replace("STEP", "ns.x.replace('a', 'aa').replace('b', 'bbbb')"),
    "joined by the filter replace": GROWING.replace("STEP", "ns.x|replace('a', 'aa')|replace('b', 'bbbb')"),
    "joined in a block": GROWING.replace("STEP", "t").replace("{% set ns.x", "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x"),
    "nested, written": NESTED + "{{ ns.x }}",
    "nested, as a namespace": NESTED + "{{ ns }}",
    "nested, as text": NESTED + "{{ ns.x|string|length }}",
    "nested, as JSON": NESTED + "{{ ns.x|tojson }}",
    "nested, as a key": NESTED + "{{ {ns.x: 1} }}",
    "nested, as a subscript": NESTED + "{{ {}[ns.x] }}",
    "nested, compared": NESTED + "{{ ns.x == 1 }}",
    "nested, looked for": NESTED + "{{ 1 in ns.x }}",
    "nested, tested": NESTED + "{{ ns.x is eq(1) }}",
    "nested, counted": NESTED + "{{ [1].count(ns.x) }}",
    "width": "{{ 'x'.center(10**10) }}{{ 'x'.ljust(10**10) }}",
    "width of a filter": "{{ 'x'|center(10000000000) }}",
    "width of a format": "{{ '%10000000000d' % 1 }}",
    "width of str.format": "{{ '{:>10000000000}'.format(1) }}",
    "width from an argument": "{{ '{:>{}}'.format(1, 10**10) }}",
    "width from an argument of %": "{{ '%*d' % (10**10, 1) }}",
    "tabs": "{{ '\t'.expandtabs(10**10) }}",
    "bytes": "{{ (5).to_bytes(10**10, 'big') }}",
    "indent": "{{ 'x\n'|indent(10**10, true) }}",
    "indent of JSON": "{{ [1]|tojson(indent=10**10) }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "wordwrap": "{{ ('x' * 8000)|wordwrap(1, true, 'y' * 100000) }}",
    "sum of lists": "{{ ([[1]] * 90000)|sum(start=[]) }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "comparisons of long texts": "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% if x in x %}{% endif %}{% endfor %}",
    "long source": "x" * (SOURCE + 1) + "{{ 1 }}",
}


def conversations() -> list[list[dict[str, Any]]]:
    user, answer = {"role": "user", "content": "Hi\n ä漢"}, {"role": "assistant", "content": "yes "}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}
    return [[user], [{"role": "system", "content": "s"}, user], [user, answer, user], [parts], [user, answer], [user, {**answer, "content": parts["content"]}]]


def render(template: str | None, source: str | None, messages: Any, **variables: Any) -> str:
    """The text, or what was raised."""
    try:
        return HFRenderer(chatml_tokenizer(), source).render(messages, tools=[{"type": "function"}], template=template, variables=variables)
    except Exception as raised:  # noqa: BLE001 - whatever it is, both have to raise the same
        return type(raised).__name__


@pytest.mark.parametrize(
    "source", [CHATML, INSTRUCT, PARTS_ONLY, "{% generation %}{{ bos_token }}{{ messages|tojson(indent=2) }}{% endgeneration %}{{ tools }}"]
)
def test_a_bounded_render_is_that_of_transformers(source: str) -> None:
    for messages in conversations():
        last = messages[-1]["role"]
        for said in ({"add_generation_prompt": True}, {"enable_thinking": False}, *([{"continue_final_message": True}] if last == "assistant" else [])):
            assert render(source, None, messages, **said) == render(None, source, messages, **said)


@pytest.mark.parametrize("name", MUCH)
def test_what_takes_too_much_ends(name: str) -> None:
    with pytest.raises((TemplateTooLarge, RecursionError)):
        HFRenderer(chatml_tokenizer(), None).render([{"role": "user", "content": "Hi"}], tools=[], template=MUCH[name], variables={})


def test_the_sandbox_holds() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ [].append(1) }}", "{{ '{0.__class__}'.format('') }}x"):
        assert render(source, None, [{"role": "user", "content": "Hi"}]) in ("SecurityError", "x")


def test_small_numbers_and_formats_are_as_ever() -> None:
    source = "{{ 2 ** 10 }} {{ '%05.2f' % 1.5 }} {{ '{:>4}'.format(7) }} {{ 'a'.center(3, '-') }} {{ [1, 2]|sum }} {{ 'a,b'.split(',')|join('+') }}"
    assert render(source, None, [{"role": "user", "content": "Hi"}]) == "1024 01.50    7 -a- 3 a+b"


def engine() -> FakeEngine:
    made = FakeEngine(lambda encoded: encoded.prompt.text or "")
    made.renderer = HFRenderer(chatml_tokenizer(), CHATML)  # type: ignore[assignment]  # any renderer does
    return made


def asked(template: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "options": {"template": template}}


def test_a_request_brings_no_template_unless_it_is_allowed() -> None:
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    first, refused, last = pg.run(pg.route(engine()), [good, asked("{{ messages[0].content }}!"), good])
    assert first == last
    assert isinstance(refused.failure(), pg.InvalidRequest)
    assert "RequestPolicy(allow_templates=True)" in refused.failure().hint
    assert "--allow-templates" in refused.failure().hint
    (allowed,) = pg.run(pg.route(engine()), [asked("{{ messages[0].content }}!")], policy=pg.RequestPolicy(allow_templates=True))
    assert allowed.unwrap().prompt_text == "Hi!"


def test_the_run_may_bring_a_template_and_it_is_bounded_too() -> None:
    plain = {"messages": [{"role": "user", "content": "Hi"}]}
    options = pg.GenerationOptions(chat=pg.ChatTemplateOptions(template="{{ messages[0].content }}?"))
    assert pg.run(pg.route(engine()), [plain], options)[0].unwrap().prompt_text == "Hi?"
    huge = pg.GenerationOptions(chat=pg.ChatTemplateOptions(template="{{ 'x' * 10**13 }}"))
    assert isinstance(pg.run(pg.route(engine()), [plain], huge)[0].failure(), pg.TemplateFailed)


def test_a_template_that_takes_too_much_fails_its_own_row() -> None:
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    slots = pg.run(pg.route(engine()), [good, asked("{{ 'x' * 10**13 }}"), good], policy=pg.RequestPolicy(allow_templates=True))
    assert isinstance(slots[1].failure(), pg.TemplateFailed)
    assert str(SIZE) in slots[1].failure().message
    assert slots[0] == slots[2] == pg.run(pg.route(engine()), [good])[0]


def test_one_of_the_checkpoints_own_templates_may_be_named() -> None:
    made = engine()
    made.renderer = HFRenderer(chatml_tokenizer(), {"default": "d", "rag": "r: {{ messages[0].content }}"})  # type: ignore[assignment]
    assert pg.run(pg.route(made), [asked("rag")])[0].unwrap().prompt_text == "r: Hi"
