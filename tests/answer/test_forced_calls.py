"""What is written around a forced call is what the chat template writes there, after a thought too."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import chatml_tokenizer

from pipegen.answer.forced_calls import CallTexts, call_texts
from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.core.slots import Slot
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.call_syntax import writer_of
from pipegen.template.control_tokens import control_tokens

BEGINS = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role != 'assistant' %}{{ m.content }}<|im_end|>
{% else %}"""
ENDS = """{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CALL = """{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
"""
THOUGHT = "{% if m.thinking is defined %}<think>{{ m.thinking }}</think>{% endif %}"
CHANNELS = (  # a thought and what follows it are two turns, and a call is none with words
    BEGINS
    + """{% if m.thinking is defined %}<think>{{ m.thinking }}</think><|im_start|>assistant
{% endif %}{% if m.tool_calls %}to={{ m.tool_calls[0].function.name }} \
{{ m.tool_calls[0].function.arguments | tojson }}<|im_end|>
{% else %}final: {{ m.content }}<|im_end|>
{% endif %}"""
    + ENDS
)
TEMPLATES = {
    "channels": (CHANNELS, "<|im_start|>assistant\nto=", " ", ""),
    "the same as without": (
        BEGINS + THOUGHT + "{{ m.content }}" + CALL + ENDS,
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
    ),
    "an empty thought before all calls": (
        BEGINS + "<think>{{ m.thinking or '' }}</think>\n{{ m.content }}" + CALL + ENDS,
        '\n<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
    ),
    "an id": (
        BEGINS + THOUGHT + "{{ m.content }}" + CALL.replace('{"name', '{{ c.id }}{"name') + ENDS,
        '<tool_call>\ncall00000{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
    ),
}
WITHOUT = {
    "no thought beside a call": (
        BEGINS
        + THOUGHT.replace("m.thinking is defined", "m.thinking is defined and not m.tool_calls")
        + "{{ m.content }}"
        + CALL
        + ENDS,
        "does not write a thought before a call, with an end token",
    ),
    "no end token": (
        BEGINS
        + THOUGHT.replace("<think>", "Thought: ").replace("</think>", ". So: ")
        + "{{ m.content }}"
        + CALL
        + ENDS,
        "does not write a thought before a call, with an end token",
    ),
    "another turn": (
        BEGINS + THOUGHT + "{{ m.content }}" + CALL + ENDS.replace("assistant\n{%", "model\n{%"),
        "does not write a thought before a call, with an end token",
    ),
}


def after_a_thought(template: str) -> Slot[CallTexts]:
    tokenizer = chatml_tokenizer()
    writer = writer_of(HFRenderer(tokenizer, template), ChatTemplateOptions(enable_thinking=True))
    return call_texts(writer, control_tokens(HFTokenizer(tokenizer), template))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_after_a_thought_is_what_the_template_writes_there(name: str) -> None:
    template, opens, between, closes = TEMPLATES[name]
    assert after_a_thought(template).unwrap() == CallTexts(opens, between, closes, "</think>")


@pytest.mark.parametrize("name", WITHOUT)
def test_a_call_is_not_forced_after_a_thought_that_the_template_does_not_write(name: str) -> None:
    template, words = WITHOUT[name]
    assert words in after_a_thought(template).failure().message
