"""Chat templates that write arguments as tagged values, and engines that are forced to call in
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pipegen as pg
from pipegen.answer.forced_calls import CallTexts, call_texts
from pipegen.answer.regex_check import matches
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.results import Encoded
from pipegen.template.call_syntax import json_at, writer_of
from pipegen.testing.fake import FakeEngine

END = "<|im_end|>"
ASKED = [{"role": "user", "content": "Call it."}]
_WRITTEN = """{{ tools | tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{{ m.content or '' }}CALLS{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_CALLS = """{% for c in m.tool_calls %}{{ '' if loop.first and not m.content else '\\n' }}OPENS
{% for k, v in c.function.arguments | items %}VALUE
{% endfor %}CLOSES{% endfor %}"""
_JSON_OF_LISTS = "v | tojson if v is mapping or (v is sequence and v is not string) else v | string"


def template(opens: str, value: str, closes: str) -> str:
    """A template whose calls have these parts."""
    calls = _CALLS.replace("OPENS", opens).replace("VALUE", value).replace("CLOSES", closes)
    return _WRITTEN.replace("CALLS", calls.replace("NAME", "{{ c.function.name }}"))


TEMPLATES = {
    "values on lines, as Qwen3-Coder": template(
        "<tool_call>\n<function=NAME>",
        "<parameter={{ k }}>\n{{ " + _JSON_OF_LISTS + " }}\n</parameter>",
        "</function>\n</tool_call>",
    ),
    "values as Python prints them, as Seed-OSS": template(
        "<s:call>\n<function=NAME>",
        "<parameter={{ k }}>{{ v | string }}</parameter>",
        "</function>\n</s:call>",
    ),
    "keys and values, as GLM": template(
        "<tool_call>NAME",
        "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>",
        "</tool_call>",
    ),
    "attributes, as MiniMax": template(
        '<calls>\n<invoke name="NAME">',
        '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>',
        "</invoke>\n</calls>",
    ),
}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def texts_of(renderer: Any) -> CallTexts:
    """What the renderer's template writes around a call without a thought."""
    return call_texts(writer_of(renderer, ChatTemplateOptions())).unwrap()


def fits(text: str, closes: str) -> bool:
    """Whether a text may be a value: the tag that closes it, up to where its first character stands
    in it again, begins nowhere before that tag.
    """
    again = closes.find(closes[0], 1)
    return (text + closes).find(closes if again < 0 else closes[:again]) == len(text)


def called(
    renderer: Any,
    tools: Sequence[Any],
    name: str,
    arguments: Mapping[str, str],
    *,
    end: str = END,
    **more: Any,
) -> pg.GenerationResult:
    """The answer of a model that is forced to call, and writes these texts as values."""
    texts = texts_of(renderer)
    tags = texts.tags
    assert tags is not None
    pairs = arguments.items()
    left = "".join(f"{tags.opens}{key}{tags.middle}{text}{tags.closes}" for key, text in pairs)
    begun = [f"{tags.opens}{key}{tags.middle}" for key in arguments]

    def answer_of(form: Any) -> Any:
        nonlocal left
        if form.choice:
            return min((one for one in form.choice if one.startswith(name)), key=len)
        if form.json_schema:
            _, size = json_at(left, 0)
            answer, left = left[:size], left[size:].removeprefix(tags.closes)
            return answer
        ways = [left + texts.closes[:size] for size in range(len(texts.closes) + 1)]
        places = (left.find(one) + len(one) for one in begun if one in left)
        ways += [left[:place] for place in sorted(places)]
        found = next((one for one in ways if matches(form.regex, one)), None)
        assert found is not None, (form.regex, left)
        left = left[len(found) :]
        return found

    def script(row: Encoded) -> Any:
        assert row.options.structured is not None
        return answer_of(row.options.structured) + end

    engine = FakeEngine(script, renderer=renderer, **more)
    options = {"tool_choice": "required", "max_new_tokens": 4000}
    request = {"messages": ASKED, "tools": [*tools]}
    return pg.run(pg.route(engine), [request], options)[0].unwrap()


def read(result: pg.GenerationResult) -> list[tuple[str, Any]]:
    """The calls that were read."""
    functions = [call["function"] for call in result.tool_calls]
    return [(one["name"], json.loads(one["arguments"])) for one in functions]
