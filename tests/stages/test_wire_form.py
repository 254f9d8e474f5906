"""Messages in the form of chat servers, as chat templates and chat servers get them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import CHATML, chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.backends.servers.image_urls import messages_of
from pipegen.core.errors import InvalidRequest, TemplateFailed
from pipegen.core.slots import Slot
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.rendering import Rendered, render_row

USER = {"role": "user", "content": "Hi"}
RESULT = {"role": "tool", "content": "mild", "tool_call_id": "call00001", "name": "look"}
AS_JSON = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set c = c.function or c %}"
    "<call>{{ c.name }} {{ c.arguments | tojson }}</call>{% endfor %}\n{% endfor %}"
)
"""As Qwen2.5's."""
OF_ITEMS = AS_JSON.replace(
    "{{ c.arguments | tojson }}",
    "{% for name, value in c.arguments | items %}<{{ name }}>{{ value }}{% endfor %}",
)
"""As GLM's and Qwen3-Coder's."""
BESIDE_NULL = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
"""As DeepSeek-V3's."""


def calling(arguments: Any, content: str | None = None, *, flat: bool = False) -> dict[str, Any]:
    call = {"name": "look", "arguments": arguments}
    entry = call if flat else {"id": "call00001", "type": "function", "function": call}
    return {"role": "assistant", "content": content, "tool_calls": [entry]}


def rendered(template: str, *messages: Any) -> Slot[Rendered]:
    raw = chatml_tokenizer()
    job = ResolvedRequest(
        request=TextGenerationRequest(messages=messages), options=resolve(GenerationOptions())
    )
    return render_row(job, HFTokenizer(raw), HFRenderer(raw, template))


@pytest.mark.parametrize(
    ("template", "flat"),
    [(AS_JSON, False), (OF_ITEMS, False), (CHATML, False), (AS_JSON, True), (OF_ITEMS, True)],
)
@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ('{"city": "Rome", "days": [1, 2.0]}', {"city": "Rome", "days": [1, 2.0]}),
        (' {"city":"Rome\\u00e9"} ', {"city": "Romeé"}),
        ("{}", {}),
        ('{"a": {"b": null}}', {"a": {"b": None}}),
        (None, {}),
    ],
)
def test_arguments_that_are_json_text_are_written_as_the_mapping_is(
    template: str, flat: bool, text: Any, mapping: Any
) -> None:
    one, other = (
        rendered(template, USER, calling(form, flat=flat), RESULT, USER).unwrap().text
        for form in (text, mapping)
    )
    assert one == other
    assert "look" in (one or "")


@pytest.mark.parametrize("text", ["in Rome", "[1]", '{"a": 1', '{"a": 1, "a": 2}', ""])
def test_text_that_is_no_json_object_stays_text_where_the_template_takes_it(text: str) -> None:
    print_like = AS_JSON.replace(" | tojson", "")
    assert f"<call>look {text}</call>" in (
        rendered(print_like, USER, calling(text), RESULT).unwrap().text or ""
    )
    error = rendered(OF_ITEMS, USER, calling(text), RESULT).failure()
    assert isinstance(error, InvalidRequest)
    assert "messages[1].tool_calls[0].function.arguments is text that is no JSON" in error.message


def test_a_template_that_fails_for_another_reason_says_its_own() -> None:
    error = rendered(OF_ITEMS + "{{ raise_exception('no') }}", USER, calling("x")).failure()
    assert isinstance(error, TemplateFailed)


@pytest.mark.parametrize("template", [AS_JSON, OF_ITEMS, CHATML])
def test_no_content_beside_calls_is_the_empty_text(template: str) -> None:
    null, empty = (
        rendered(template, USER, calling({"a": 1}, content), RESULT).unwrap().text
        for content in (None, "")
    )
    assert null == empty
    assert "None" not in (null or "")


def test_a_template_that_adds_to_content_takes_none() -> None:
    adds = "{% for m in messages %}{{ m.role + ': ' + m.content }}{{ m.tool_calls }}{% endfor %}"
    assert "look" in (rendered(adds, USER, calling({})).unwrap().text or "")
    assert rendered(adds, USER, {"role": "assistant", "content": None}, USER).unwrap().text


def test_a_template_that_writes_calls_only_beside_null_gets_null() -> None:
    """From 5.23 on, transformers takes nulls out of messages."""
    from pipegen.backends.checkpoint.chat_jinja import rendering

    for content in (None, ""):
        slot = rendered(BESIDE_NULL, USER, calling('{"a": 1}', content))
        if "null" in rendering().rewrites:
            assert isinstance(slot.failure(), TemplateFailed)
        else:
            assert '<call>look{"a": 1}' in (slot.unwrap().text or "")


def test_chat_servers_get_arguments_as_text() -> None:
    def sent(arguments: Any, *, flat: bool = False) -> Any:
        request = TextGenerationRequest(messages=[USER, calling(arguments, flat=flat), RESULT])
        call = messages_of(request).unwrap()[1]["tool_calls"][0]
        return (call if flat else call["function"])["arguments"]

    assert sent({"city": "Romeé", "n": 1.0}) == '{"city": "Romeé", "n": 1.0}'
    assert sent({"city": "Rome"}, flat=True) == '{"city": "Rome"}'
    assert sent('{"city":"Rome"}') == '{"city":"Rome"}'
    assert sent("in Rome") == "in Rome"
    assert (sent({}), sent(None)) == ("{}", "{}")


@pytest.mark.parametrize("value", [float("nan"), b"x"])
def test_arguments_that_json_has_no_form_for_are_refused_for_chat_servers(value: Any) -> None:
    error = messages_of(TextGenerationRequest(messages=[calling({"a": value})])).failure()
    assert isinstance(error, InvalidRequest)
    assert "JSON has no form for" in error.message
