"""What is found out about a chat template: whose words it writes, and which it drops."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import CHATML, chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.rendering import Rendered, render_row
from pipegen.template import template as templates
from pipegen.template.untrusted import Conversation
from pipegen.testing.fake import ToyRenderer

USERS_ONLY = (
    "{% for m in messages if m.role == 'user' %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
)
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well."}
RESULT = {"role": "tool", "content": "42 degrees", "tool_call_id": "call1"}
CALL = {
    "type": "function",
    "id": "call1",
    "function": {"name": "look", "arguments": {"place": "here"}},
}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA},
}


def rendered(
    template: str, *messages: Mapping[str, Any], tools: Sequence[Any] = (), **chat: Any
) -> Slot[Rendered]:
    raw = chatml_tokenizer()
    request = TextGenerationRequest(messages=messages, tools=tuple(tools))
    job = ResolvedRequest(
        request=request, options=resolve(GenerationOptions(chat=ChatTemplateOptions(**chat)))
    )
    return render_row(job, HFTokenizer(raw), HFRenderer(raw, template))


@pytest.mark.parametrize("mode", ["text", "reject", "allow"])
@pytest.mark.parametrize(
    ("messages", "more", "place", "kind"),
    [
        ([USER, CALLING, RESULT], {}, "messages[1].tool_calls", "tool_calls"),
        ([USER, RESULT], {}, "messages[1].content", "turns of role 'tool'"),
        (
            [USER, {**RESULT, "content": [{"type": "text", "text": "42"}]}],
            {},
            "messages[1].content",
            "turns of role 'tool'",
        ),
        ([USER, ANSWER, USER], {}, "messages[1].content", "turns of role 'assistant'"),
        (
            [{"role": "system", "content": "Be brief."}, USER],
            {},
            "messages[0].content",
            "turns of role 'system'",
        ),
        (
            [{"role": "developer", "content": "Be brief."}, USER],
            {},
            "messages[0].content",
            "turns of role 'developer'",
        ),
        ([USER], {"tools": [TOOL]}, "tools", "tools"),
        (
            [USER],
            {"template_kwargs": {"documents": [{"text": "words"}]}},
            "template_kwargs.documents",
            "documents",
        ),
    ],
)
def test_words_that_the_template_does_not_write_fail_the_request(
    messages: list[Any], more: dict[str, Any], place: str, kind: str, mode: str
) -> None:
    error = rendered(USERS_ONLY, *messages, **more, control_tokens=mode).failure()
    assert isinstance(error, TemplateFailed)
    assert (
        error.message == f"the chat template writes nothing of {place}: it has no place for {kind}"
    )
    assert "options.chat.template" in error.hint


def test_what_users_say_is_written_too() -> None:
    error = rendered("{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}", USER).failure()
    assert isinstance(error, TemplateFailed)
    assert "messages[0].content" in error.message


def test_a_template_that_writes_them_is_as_it_was() -> None:
    assert is_ok(
        rendered(
            CHATML,
            {"role": "system", "content": "Be brief."},
            USER,
            CALLING,
            RESULT,
            ANSWER,
            USER,
            tools=[TOOL],
        )
    )
    assert is_ok(
        rendered(
            "{% for d in documents %}{{ d.text }}{% endfor %}" + USERS_ONLY,
            USER,
            template_kwargs={"documents": [{"text": "words"}]},
        )
    )


def test_turns_without_words_and_variables_without_documents_are_not_missed() -> None:
    image = {"role": "user", "content": [{"type": "text", "text": ""}]}
    quiet = [{"role": "assistant", "content": ""}, {"role": "tool", "content": ""}]
    assert is_ok(
        rendered(
            USERS_ONLY, USER, *quiet, image, template_kwargs={"documents": [], "style": "brief"}
        )
    )


def test_a_thought_that_is_taken_out_of_an_earlier_answer_is_no_dropped_word() -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>", "reasoning_content": "hm"}
    assert is_ok(rendered(CHATML, USER, thought, USER))


def test_a_template_that_refuses_a_probe_and_one_that_changes_what_it_writes_are_asked_with_the_request_itself() -> (
    None
):
    second = "{% for m in messages %}{{ m.content if loop.length > 3 }}<|im_end|>{% endfor %}"
    assert (
        rendered(second, USER, ANSWER, USER, ANSWER).unwrap().text
        == "Hi<|im_end|>Well.<|im_end|>Hi<|im_end|>Well.<|im_end|>"
    )
    assert isinstance(rendered(second, USER).failure(), TemplateFailed)
    named = (
        "{% for m in messages %}{{ m.content | upper }}{% for c in m.tool_calls or [] %}{{"
        " c.function.arguments.place }}{% endfor %}{% endfor %}"
    )
    assert rendered(named, USER, CALLING, RESULT).unwrap().text == "HIhere42 DEGREES"
    picky = (
        "{% for t in tools or [] %}{{ raise_exception('no') if t.function.name in ('probe',"
        " 'other') }}look{% endfor %}" + USERS_ONLY
    )
    assert is_ok(rendered(picky, USER, tools=[TOOL]))
    some = (
        "{% for d in documents or [] %}{{ d.title if d.kind == 'paper' }}{% endfor %}" + USERS_ONLY
    )
    assert is_ok(
        rendered(
            some, USER, template_kwargs={"documents": [{"title": "On words", "kind": "paper"}]}
        )
    )


FIRST_PART = "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}"
LAST_PART = FIRST_PART.replace("[0]", "[-1]")
ALL_PARTS = (
    "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{{ p.text or '<image>' }}"
    "{% endfor %}\n{% endfor %}"
)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize("mode", ["text", "reject", "allow"])
@pytest.mark.parametrize(
    ("template", "content", "place"),
    [
        (FIRST_PART, parts("Look here.", "What is it?"), 1),
        (FIRST_PART, parts("Look here.", "", "What is it?"), 2),
        (LAST_PART, parts("Look here.", "What is it?"), 0),
        (FIRST_PART.replace("}}", "| upper }}"), parts("Look here.", "What is it?"), 1),
    ],
)
def test_a_part_that_the_template_does_not_write_fails_the_request(
    template: str, content: Any, place: int, mode: str
) -> None:
    for messages in (
        [{"role": "user", "content": content}],
        [
            {"role": "user", "content": parts("Hi")},
            {"role": "assistant", "content": parts("Yes?")},
            {"role": "user", "content": content},
        ],
    ):
        error = rendered(template, *messages, control_tokens=mode).failure()
        assert isinstance(error, TemplateFailed)
        path = f"messages[{len(messages) - 1}].content[{place}]"
        assert f"writes nothing of {path}" in error.message
        assert "into one part" in error.hint


def test_a_template_that_writes_each_part_is_as_it_was() -> None:
    both = {"role": "user", "content": parts("Look here.", "What is it?")}
    for template in (ALL_PARTS, ALL_PARTS.replace("p.text", "p.text | upper"), CHATML):
        text = rendered(template, both).unwrap().text or ""
        assert "look here.what is it?" in text.lower()
    assert "Look here." in (
        rendered(FIRST_PART, {**both, "content": parts("Look here.", " ")}).unwrap().text or ""
    )


def test_words_beside_an_image_are_parts_too() -> None:
    raw = chatml_tokenizer()
    content = [{"type": "image", "image": "a.png"}, *parts("What is it?")]
    request = VlmGenerationRequest(messages=[{"role": "user", "content": content}])
    job = ResolvedRequest(request=request, options=resolve(GenerationOptions()))
    templates = [ALL_PARTS, FIRST_PART]
    slots = [render_row(job, HFTokenizer(raw), HFRenderer(raw, source)) for source in templates]
    assert [is_ok(slot) for slot in slots] == [True, False]
    assert "messages[0].content[1]" in slots[1].failure().message


def test_without_jinja_all_that_a_renderer_raises_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jinja2 import TemplateError

    def error() -> TemplateFailed:
        renderer = ToyRenderer(raises=TemplateError("no"))
        failed = templates.call_template(renderer, None, {}, Conversation([], [], {})).failure()
        assert isinstance(failed, TemplateFailed)
        return failed

    refused = error()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(templates, "_refusals", templates._refusals.__wrapped__)
    traced = error()
    assert refused.message == traced.message == "the chat template raised TemplateError: no"
    assert (bool(refused.incident), bool(traced.incident)) == (False, True)
