"""Tool calls are read by the form that the chat template writes them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import chatml_tokenizer

from pipegen.answer.forced_calls import call_texts
from pipegen.answer.tool_calls import ToolCalls, read_calls
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.call_syntax import writer_of

HEAD = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}"""
FOOT = """<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HERMES = (
    HEAD
    + """{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
    + FOOT
)
TAGGED = (
    HEAD
    + """{% for c in m.tool_calls or [] %}<call={{ c.function.name }}>
{% for k, v in c.function.arguments.items() %}<arg={{ k }}>
{{ v if v is string else v | tojson }}
</arg>
{% endfor %}</call>
{% endfor %}"""
    + FOOT
)
LIST = (
    HEAD
    + """{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{"name": "{{ c.function.name }}",\
 "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}\
{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}"""
    + FOOT
)
TEXT_ONLY = HERMES.replace("c.function.arguments | tojson", '"" + c.function.arguments')
FORMS = {"hermes": HERMES, "tagged": TAGGED, "list": LIST, "arguments as text": TEXT_ONLY}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "gets",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"city": "Rome"},
    {"city": "12", "days": 3},
    {},
    {"city": 'a "quoted" <b> word', "more": [1, {"deep": None}], "yes": True},
)


def renderer(template: str) -> HFRenderer:
    return HFRenderer(chatml_tokenizer(), template)


def written(template: str, content: str, calls: list[dict[str, Any]]) -> str:
    """The answer with these calls, as the template writes it."""
    writer = writer_of(renderer(template), ChatTemplateOptions())
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    whole = writer.answer(message, TOOLS) or ""
    prompt = writer.prompt(TOOLS)
    return whole.removeprefix(prompt).removesuffix("<|im_end|>\n")


def read(template: str, answer: str) -> ToolCalls:
    writer = writer_of(renderer(template), ChatTemplateOptions())
    return read_calls(answer, "<|im_end|>", TOOLS, writer)


def call(arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    function = {"name": "get", "arguments": arguments}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("content", ["", "Let me see.", "Let me see:\n"])
@pytest.mark.parametrize("name", FORMS)
def test_what_a_template_writes_is_read_back(
    name: str, content: str, arguments: dict[str, Any]
) -> None:
    answer = written(FORMS[name], content, [call(arguments)])
    found = read(FORMS[name], answer)
    assert [json.loads(one["function"]["arguments"]) for one in found.calls] == [arguments]
    assert (found.content, found.unread) == (content, None)


@pytest.mark.parametrize("name", FORMS)
def test_several_calls_are_read_in_order(name: str) -> None:
    answer = written(FORMS[name], "", [call({"city": "Rome"}), call({"days": 2}, 1)])
    found = read(FORMS[name], answer)
    arguments = [json.loads(one["function"]["arguments"]) for one in found.calls]
    assert arguments == [{"city": "Rome"}, {"days": 2}]
    assert [one["id"] for one in found.calls] == ["call00000", "call00001"]


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_without_calls_has_none(name: str) -> None:
    assert read(FORMS[name], "It is sunny.") == ToolCalls()


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}',
        '<tool_call>\n{"name": "get", "arguments": {"city":"Rome"}}\n</tool_call>',
        '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call> and more',
        '<tool_call>\n{"name": "get", "arguments": 7}\n</tool_call>',
        '<tool_call>\n{"name": "',
        "<call=get>\n<arg=city",
        "<call=get>\n<arg=city>\nRome",
    ],
)
def test_an_answer_that_the_template_would_write_otherwise_stays_text(answer: str) -> None:
    found = read(HERMES if answer.startswith("<tool_call>") else TAGGED, answer)
    assert (found.calls, found.content) == ((), None)
    assert found.unread is not None


COMPACT = '<tool_call>\n{"name":"get","arguments":{"city":"Rome"}}\n</tool_call>'
WHOLE = '<tool_call>\\n{"name": "get", "arguments": {"city": "Rome"}}\\n</tool_call>'
LOOK_LIKE_CALLS = {
    "compact JSON": (HERMES, COMPACT, WHOLE),
    "another order of keys": (
        HERMES,
        '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get"}\n</tool_call>',
        WHOLE,
    ),
    "no tag": (HERMES, '{"name": "get", "parameters": {"city": "Rome"}}', WHOLE),
    "a list as name": (
        HERMES,
        '<tool_call>\n{"name": ["get"], "arguments": {}}\n</tool_call>',
        "does not go on in its form",
    ),
    "a mapping as name": (
        HERMES,
        '<tool_call>\n{"function": {"name": {"get": 1}, "arguments": {}}}\n</tool_call>',
        "does not go on in its form",
    ),
    "no JSON": (HERMES, "<tool_call>\nget Rome\n</tool_call>", "does not go on in its form"),
    "tagged otherwise": (
        TAGGED,
        "<call=get>\n<arg=city>\nRome\n</arg>\n</call> and more",
        "<arg=city>\\nRome\\n</arg>\\n</call>",
    ),
    "a value that has an end tag": (
        TAGGED,
        "<call=get>\n<arg=city>\nRome\n</arg>\n\n</call>",
        "the chat template writes the call of the answer otherwise",
    ),
    "another family's form": (TAGGED, COMPACT, "<call=get>"),
    "as a function": (HERMES, '[get(city="Rome")]', "does not go on in its form"),
    "a template without calls": (HEAD + FOOT, COMPACT, "does not write the name of a call"),
}


@pytest.mark.parametrize("name", LOOK_LIKE_CALLS)
def test_a_text_that_looks_like_a_call_says_why_it_is_none(name: str) -> None:
    template, answer, words = LOOK_LIKE_CALLS[name]
    found = read(template, answer)
    assert found.calls == () and words in (found.unread or "")


@pytest.mark.parametrize("size", [9, 15, 25, 50, 60])
def test_a_call_that_was_cut_says_what_cut_it(size: int) -> None:
    answer = written(HERMES, "", [call({"city": "Rome"})])[:size]
    writer = writer_of(renderer(HERMES), ChatTemplateOptions())
    found = read_calls(answer, "", TOOLS, writer, "max_new_tokens=9 ended it")
    assert found.unread == "the answer was cut within a tool call: max_new_tokens=9 ended it"
    assert read_calls("Rome is", "", TOOLS, writer, "max_new_tokens=9 ended it") == ToolCalls()


PRINTS = TAGGED.replace("v | tojson", "v | string")
TYPED = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "yes": {"type": "boolean"},
        "more": {"$ref": "#/$defs/more"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"enum": ["1", "2"]},
    },
    "$defs": {"more": {"type": "object"}},
}
VALUES: dict[str, tuple[str, Any]] = {
    "true": ("yes", True),
    "True": ("yes", True),
    '{"a":1}': ("more", {"a": 1}),
    "{'a': None}": ("more", {"a": None}),
    "12": ("city", "12"),
    '"12"': ("city", '"12"'),
    "null": ("maybe", None),
    "1": ("unit", "1"),
    "soon": ("days", "soon"),
    "[1,2]": ("unknown", [1, 2]),
    "(1, 2)": ("unknown", "(1, 2)"),
    "{1: 2}": ("unknown", "{1: 2}"),
}


@pytest.mark.parametrize("text", VALUES)
@pytest.mark.parametrize("template", [TAGGED, PRINTS], ids=["JSON", "printed"])
def test_each_tagged_value_is_read_by_the_schema_on_its_own(template: str, text: str) -> None:
    key, value = VALUES[text]
    tools = [{"type": "function", "function": {"name": "get", "parameters": TYPED}}]
    answer = f"<call=get>\n<arg={key}>\n{text}\n</arg>\n<arg=days>\n3\n</arg>\n</call>\n"
    if key == "days":
        answer = f"<call=get>\n<arg={key}>\n{text}\n</arg>\n</call>\n"
    writer = writer_of(renderer(template), ChatTemplateOptions())
    (found,) = read_calls(answer, "<|im_end|>", tools, writer).calls
    arguments = json.loads(found["function"]["arguments"])
    assert arguments == ({key: value} if key == "days" else {key: value, "days": 3})
    assert type(arguments[key]) is type(value)


REFUSES = "{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
NUMBERED = {
    "JSON": (
        LIST.replace('{"name"', REFUSES + '{"name"'),
        '[TOOL_CALLS][{"name": "get", "arguments": {"city": "Rome"}ID}]',
        ', "id": "%s"',
    ),
    "JSON, first": (
        LIST.replace('{"name"', '{"id": "{{ c.id }}", "name"').replace(
            ', "id": "{{ c.id }}"}', "}"
        ),
        '[TOOL_CALLS][{ID"name": "get", "arguments": {"city": "Rome"}}]',
        '"id": "%s", ',
    ),
    "a tag": (
        HEAD
        + "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}"
        + REFUSES
        + "[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
        + FOOT,
        '[TOOL_CALLS]getID[ARGS]{"city": "Rome"}',
        "[CALL_ID]%s",
    ),
}


@pytest.mark.parametrize("number", ["", "abcdefghi", "x"])
@pytest.mark.parametrize("name", NUMBERED)
def test_an_id_is_made_where_the_model_writes_none_or_one_that_is_refused(
    name: str, number: str
) -> None:
    template, answer, form = NUMBERED[name]
    found = read(template, answer.replace("ID", form % number if number else "", 1))
    taken = "abcdefghi" if number == "abcdefghi" else "call00000"
    if name == "JSON, first" and number:  # it takes any
        taken = number
    assert [json.loads(one["function"]["arguments"]) for one in found.calls] == [{"city": "Rome"}]
    assert (found.calls[0]["id"], found.content, found.unread) == (taken, "", None)


NAMED = HEAD + (
    "{% for c in m.tool_calls or [] %}{% if loop.first %}<|section|>{% endif %}<|begin|>NUMBER"
    "<|argument|>{{ c.function.arguments | tojson }}<|end|>{% if loop.last %}<|done|>{% endif %}"
    "{% endfor %}" + FOOT
)


@pytest.mark.parametrize(
    "number", ["{{ c.id }}", "functions.{{ c.function.name }}:{{ loop.index0 }}"]
)
@pytest.mark.parametrize("first", [0, 3])
def test_ids_that_are_made_of_names_are_read(number: str, first: int) -> None:
    template = NAMED.replace("NUMBER", number)
    ids = [f"functions.get:{index}" for index in (first, first + 1)]
    body = "".join(f'<|begin|>{one}<|argument|>{{"city": "Rome"}}<|end|>' for one in ids)
    found = read(template, f"I look.<|section|>{body}<|done|>")
    assert [one["id"] for one in found.calls] == ids
    assert [one["function"]["name"] for one in found.calls] == ["get", "get"]
    assert (found.content, found.unread) == ("I look.", None)
    assert read(template, "It is sunny.") == ToolCalls()


THINKS = {  # how a thought is written before calls
    "in a field": (
        HERMES.replace("{{ m.content }}", "[THINK]{{ m.thinking or '' }}[/THINK]{{ m.content }}"),
        "[THINK]I look.[/THINK]",
    ),
    "in a field beside calls": (
        HERMES.replace(
            "{{ m.content }}",
            "{{ m.content }}{% if m.tool_calls and m.reasoning %}thought {{ m.reasoning }}. {% endif %}",
        ),
        "thought I look.. ",
    ),
}


@pytest.mark.parametrize("name", THINKS)
def test_calls_are_read_behind_a_thought(name: str) -> None:
    template, thought = THINKS[name]
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'
    found = read(template, thought + call)
    assert (len(found.calls), found.content, found.unread) == (1, thought, None)


@pytest.mark.parametrize(
    ("opened", "thought"), [("", "hm"), ("<think>\n", "hm"), ("<think>\n", "hm <think> so")]
)
def test_a_call_is_read_behind_a_thought_and_words(opened: str, thought: str) -> None:
    field = (
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    )
    template = HERMES.replace("{{ m.content }}", field + "{{ m.content.split('</think>')[-1] }}")
    template = template.replace("assistant\n{% endif %}", f"assistant\n{opened}{{% endif %}}")
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'
    content = f"<think>\n{thought}\n</think>\n\nI look.".removeprefix(opened)
    found = read(template, content + call)
    assert (len(found.calls), found.content, found.unread) == (1, content, None)


def test_an_empty_thought_beside_calls_alone_is_no_part_of_a_call() -> None:
    thought = "{% if m.tool_calls and not m.content %}<think>{{ m.thinking }}</think>\n{% endif %}"
    template = HERMES.replace("{{ m.content }}", thought + "{{ m.content }}")
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'
    found = read(template, f"<think></think>\n{call}")
    assert (len(found.calls), found.unread) == (1, None)
    opens = '<think></think>\n<tool_call>\n{"name": "'
    assert call_texts(writer_of(renderer(template), ChatTemplateOptions())).unwrap().opens == opens


UNREAD_FORMS = {
    "does not write the name of a call once": HERMES.replace(
        '{"name', '{{ c.function.name }}{"name'
    ),
    "writes the arguments in a form of its own": HERMES.replace("| tojson", "| tojson | upper"),
    "writes nothing before the name of a call": HEAD
    + "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}" + FOOT,
}


@pytest.mark.parametrize("reason", UNREAD_FORMS)
def test_a_form_of_calls_that_is_not_known_says_what_is_wrong(reason: str) -> None:
    writer = writer_of(renderer(UNREAD_FORMS[reason]), ChatTemplateOptions())
    assert call_texts(writer).failure().message == f"the chat template {reason}"


def test_a_thought_that_is_always_written_is_no_part_of_the_content() -> None:
    empty = HERMES.replace(
        "{{ m.content }}", "<think>\n\n</think>\n\n{{ m.content.split('</think>')[-1].lstrip() }}"
    )
    empty = "{% set think = true %}" + empty.replace(
        "<think>", "{% if m.role == 'assistant' %}<think>"
    ).replace("</think>\n\n", "</think>\n\n{% endif %}")
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'
    found = read(empty, "<think>\n\n</think>\n\n" + call)
    assert (len(found.calls), found.content, found.unread) == (1, "", None)
    writer = writer_of(renderer(empty), ChatTemplateOptions())
    assert call_texts(writer).unwrap().opens == '<think>\n\n</think>\n\n<tool_call>\n{"name": "'


def test_a_template_without_calls_says_so() -> None:
    found = read(HEAD + FOOT, '<tool_call>{"name": "get"}')
    assert found.unread == "the chat template does not write the name of a call"
    assert read(HEAD + FOOT, "It is sunny.") == ToolCalls()


def test_the_checkpoints_own_reader_comes_first_and_is_checked_too() -> None:
    class Reads(HFRenderer):
        city = "Rome"

        def read_response(self, text: str, *, prompt: str, tools: Any) -> Any:
            return {"content": "", "tool_calls": [call({"city": self.city})]}

    own = Reads(chatml_tokenizer(), HERMES)
    answer = written(HERMES, "", [call({"city": "Rome"})])
    assert len(read_calls(answer, "", TOOLS, writer_of(own, ChatTemplateOptions())).calls) == 1
    Reads.city = "Paris"  # which is not in the answer: the form of the template is tried then
    found = read_calls(answer, "", TOOLS, writer_of(own, ChatTemplateOptions()))
    assert '"Rome"' in found.calls[0]["function"]["arguments"]


CALLED = "{% if m.tool_calls %}"
ENDS = {
    "another token": ("<|call|>", "<|return|>", "}\n</tool_call>"),
    "more, and the same token": ("<|im_end|>\n<|again|>", "<|im_end|>\n", "}\n</tool_call>"),
    "none": ("", "<|im_end|>\n", "}\n</tool_call>"),
    "no end": ("", "", "}\n</tool_call>"),
    "the same last tag": ("<|act|><|im_end|>\n", "<|say|><|im_end|>\n", "}\n</tool_call><|act|>"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_call_is_what_is_behind_the_answer(name: str) -> None:
    call, text, closes = ENDS[name]
    foot = f"{CALLED}{call}{{% else %}}{text}{{% endif %}}"
    template = HERMES.replace("<|im_end|>\n{% endfor %}", foot + "{% endfor %}")
    writer = writer_of(renderer(template), ChatTemplateOptions())
    assert call_texts(writer).unwrap().closes == closes


def test_a_call_is_not_forced_where_it_begins_otherwise_than_prompts_end() -> None:
    role = "{{ 'caller' if m.tool_calls else m.role }}"
    writer = writer_of(renderer(HERMES.replace("{{ m.role }}", role)), ChatTemplateOptions())
    assert "begins an answer that is a call otherwise" in call_texts(writer).failure().message


def test_a_call_is_not_forced_where_it_is_not_read_back() -> None:
    numbered = HERMES.replace("<tool_call>\n{", "<tool_call>\n{{ c.id[-1] }}{")
    writer = writer_of(renderer(numbered), ChatTemplateOptions())
    assert "is not read back from its text" in call_texts(writer).failure().message
