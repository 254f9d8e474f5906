"""The demo's page: one HTML file without scripts, with every text escaped.

>>> boxes_of('{"objects":[{"shape":"circle","color":"red","bbox_2d":[0,0,500,1000]}]}')
(Box(label='red circle', left=0.0, top=0.0, width=50.0, height=100.0),)
>>> boxes_of("no JSON")
()
"""

from __future__ import annotations

import base64
import html
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from pipegen.cli.demo import BROKEN, IMAGES
from pipegen.cli.outputs import printable
from pipegen.core.distribution import version
from pipegen.core.slots import is_ok
from pipegen.records import strict_json
from pipegen.records.results import GenerationResult
from pipegen.report.boxes import Box

if TYPE_CHECKING:
    from pipegen.cli.demo import Outcome

__all__ = ["boxes_of", "page"]

PAGE = Path(__file__).with_name("demo_page.html")


def boxes_of(text: str) -> tuple[Box, ...]:
    """The boxes of an answer such as `{"objects": [{"shape", "color", "bbox_2d": [x1, y1, x2, y2]}]}`, in thousandths; none for any other answer."""
    try:
        value = strict_json.load(text)
    except strict_json.NotStrict:
        return ()
    objects = value.get("objects") if isinstance(value, dict) else None
    return tuple(box for one in objects if (box := _box(one)) is not None) if isinstance(objects, list) else ()


def _box(one: Any) -> Box | None:
    corners = one.get("bbox_2d") if isinstance(one, dict) else None
    if not (isinstance(corners, list) and len(corners) == 4 and all(type(corner) in (int, float) for corner in corners)):
        return None
    x1, y1, x2, y2 = (min(max(corner, 0), 1000) / 10 for corner in corners)
    label = " ".join(str(one[name]) for name in ("color", "shape") if isinstance(one.get(name), str))
    return Box(label, x1, y1, max(x2 - x1, 0), max(y2 - y1, 0))


def _text(text: str) -> str:
    """Foreign text, escaped for the page."""
    return html.escape(printable(text))


def page(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The whole page."""
    results = [outcome.slot.unwrap() for outcome in outcomes if is_ok(outcome.slot)]
    facts = (
        f"{len(outcomes)} requests in one batch",
        f"{len(results)} answers, {len(outcomes) - len(results)} error",
        f"{sum(result.prompt_tokens for result in results)} prompt tokens",
        f"{sum(sample.completion_tokens for result in results for sample in result.samples or (result,))} generated",
        f"{seconds:.1f} s on this machine",
    )
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    cards = "\n".join(_card(outcome) for outcome in outcomes)
    template = Template(PAGE.read_text(encoding="utf-8"))
    return template.substitute(chips=chips, cards=cards, version=_text(version()))


def _card(outcome: Outcome) -> str:
    case, slot = outcome.case, outcome.slot
    result = slot.unwrap() if is_ok(slot) else None
    kind = "card" if result else "card failed"
    system = f'<p class="system"><b>system</b> {_text(case.system)}</p>' if case.system else ""
    answer = _answer(outcome, result) if result else _error(outcome)
    odd = "" if outcome.good else '<p class="odd">This did not come out as expected.</p>'
    return f"""<article class="{kind}">
<h2>{_text(case.title)}</h2><p class="note">{_text(case.note)}</p>
{_images(outcome, result)}{system}<p class="question">{_text(case.question)}</p>{odd}
{answer}
</article>"""


def _images(outcome: Outcome, result: GenerationResult | None) -> str:
    if not outcome.case.images:
        return ""
    drawn = "".join(
        f'<div class="box" style="left:{box.left:g}%;top:{box.top:g}%;width:{box.width:g}%;height:{box.height:g}%"><span>{_text(box.label)}</span></div>'
        for box in (boxes_of(result.text) if result and len(outcome.case.images) == 1 else ())
    )
    return '<div class="images">' + "".join(_image(name, drawn) for name in outcome.case.images) + "</div>\n"


def _image(name: str, drawn: str) -> str:
    if name == BROKEN:
        return f'<figure class="missing"><div>&#x26A0;</div><figcaption>{_text(name)}: half of the file is missing</figcaption></figure>'
    data = base64.b64encode((IMAGES / name).read_bytes()).decode()
    kind = mimetypes.guess_type(name)[0] or "image/png"
    image = f'<img alt="{_text(name)}" src="data:{kind};base64,{data}">'
    return f'<figure><div class="frame">{image}{drawn}</div><figcaption>{_text(name)}</figcaption></figure>'


def _answer(outcome: Outcome, result: GenerationResult) -> str:
    texts = "".join(f'<pre class="text">{_text(sample.text)}</pre>' for sample in result.samples or (result,))
    facts = [("finish", result.finish.value)] + ([("stop", repr(result.stop))] if result.stop is not None else [])
    facts += [("prompt tokens", str(result.prompt_tokens)), ("generated", str(result.completion_tokens)), ("thinking", str(result.thinking))]
    facts += [("grid", " x ".join(map(str, grid))) for grid in result.image_grid_thw if grid]
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
    opened = " open" if outcome.case.shows_prompt else ""
    return f"""{texts}
<dl>{rows}</dl>
<h3>raw_text</h3><pre class="raw">{_pieces(outcome.answer)}</pre>
<details{opened}><summary>The prompt, as the model gets it</summary><pre class="raw">{_pieces(outcome.prompt)}</pre></details>"""


def _pieces(pieces: Sequence[tuple[str, bool]]) -> str:
    return "".join(f'<span class="token">{_text(text)}</span>' if control else _text(text) for text, control in pieces)


def _error(outcome: Outcome) -> str:
    error = outcome.slot.failure()
    return f"""<div class="error"><b>{_text(type(error).__name__)}</b><p>{_text(error.message)}</p><p class="hint">{_text(error.hint)}</p></div>
<p class="note">The other requests of the batch were answered in the same call.</p>"""
