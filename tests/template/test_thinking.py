"""How a thought begins and ends is read off the chat template."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.call_syntax import writer_of
from pipegen.template.control_tokens import control_tokens
from pipegen.template.thinking import ThoughtTexts, thought_texts

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
FOOT = "{{ m.content }}<|im_end|>\n{% endfor %}"
OPENS = "{% if add_generation_prompt %}<|im_start|>assistant\n"
FIELD = "{% if m.FIELD is defined %}<think>\n{{ m.FIELD }}\n</think>\n\n{% endif %}"
WRITTEN = TURNS + FIELD + FOOT + OPENS + "{% endif %}"
TEMPLATES = {
    "written": (WRITTEN.replace("FIELD", "reasoning_content"), ("<think>\n", "\n", "\n\n")),
    "another field": (WRITTEN.replace("FIELD", "thinking"), ("<think>\n", "\n", "\n\n")),
    "written and opened by the prompt": (
        TURNS + FIELD.replace("FIELD", "reasoning") + FOOT + OPENS + "<think>\n{% endif %}",
        ("", "\n", "\n\n"),
    ),
    "left empty": (
        TURNS
        + FOOT
        + OPENS
        + "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
        ("<think>\n", "\n", "\n\n"),
    ),
    "left empty in an open thought": (
        TURNS
        + FOOT
        + OPENS
        + "<think>\n{% if not enable_thinking %}{{ '\\n' }}</think>\n\n{% endif %}{% endif %}",
        ("", "\n", "\n\n"),
    ),
    "switched in the system's turn too": (
        "{% if enable_thinking %}<|im_start|>system\non<|im_end|>\n{% endif %}"
        + TURNS
        + FOOT
        + OPENS
        + "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
        ("<think>\n", "\n", "\n\n"),
    ),
    "written beside calls alone": (
        TURNS
        + "{% if m.thinking is defined and m.tool_calls %}<think>{{ m.thinking }}</think>\n"
        + "{% endif %}{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}: "
        + "{{ c.function.arguments | tojson }}{% endfor %}"
        + FOOT
        + OPENS
        + "{% endif %}",
        ("<think>", "", "\n"),
    ),
    "opened": (
        TURNS
        + "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        + OPENS
        + "<think>\n{% endif %}",
        ("", "\n", ""),
    ),
}
NONE = {
    "no thought": TURNS + FOOT + OPENS + "{% endif %}",
    "no end token": TURNS
    + "{% if m.thinking is defined %}Thought: {{ m.thinking }}. Answer: {% endif %}"
    + FOOT
    + OPENS
    + "{% endif %}",
    "another turn before it": TURNS
    + "{% if m.thinking is defined %}<think>{{ m.thinking }}</think>{% endif %}"
    + FOOT
    + "{% if add_generation_prompt %}<|im_start|>bot\n{% endif %}",
    "a switch that changes how the prompt ends": TURNS
    + FOOT
    + OPENS
    + "{% if enable_thinking %}Think.{% else %}<think></think>{% endif %}{% endif %}",
    "a switch that changes more": "{{ enable_thinking }}" + TURNS + FOOT + OPENS + "{% endif %}",
}


def read(template: str) -> Any:
    tokenizer = chatml_tokenizer()
    renderer = HFRenderer(tokenizer, template)
    writer = writer_of(renderer, ChatTemplateOptions(enable_thinking=True))
    written = template + "<think></think>"
    return thought_texts(writer, control_tokens(HFTokenizer(tokenizer), written))


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_thought_is_read_off_the_template(name: str) -> None:
    template, (opens, closes, bridge) = TEMPLATES[name]
    assert read(template) == ThoughtTexts(opens, closes, "</think>", bridge)


@pytest.mark.parametrize("name", NONE)
def test_templates_without_one(name: str) -> None:
    assert read(NONE[name]) is None
